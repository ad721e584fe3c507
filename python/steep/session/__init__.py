"""Trains, runs and differentiates ONNX files, without importing PyTorch."""

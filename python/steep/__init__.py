"""Steep trains ONNX graphs."""

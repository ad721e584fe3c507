"""Rewrites of ONNX protos."""

"""Converts a captured graph of PyTorch to an ONNX model."""

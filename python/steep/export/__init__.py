"""Exports a PyTorch module as an ONNX file."""

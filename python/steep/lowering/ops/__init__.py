"""Translations of PyTorch's operators to ONNX, one family a file."""

"""A module of PyTorch's as an ONNX file."""

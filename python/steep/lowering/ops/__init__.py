"""PyTorch's operators in ONNX, one family a file."""

"""A captured graph of PyTorch's → an ONNX model."""

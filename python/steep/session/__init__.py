"""Doors that never import PyTorch: train, run and differentiate an ONNX file."""

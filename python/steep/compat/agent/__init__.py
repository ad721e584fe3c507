"""ONNX Runtime Training's agent API: a forward and a backward graph, run separately."""

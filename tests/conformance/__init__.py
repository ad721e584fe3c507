"""The ONNX project's own backend tests, run by InferenceSession."""

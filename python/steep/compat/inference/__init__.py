"""``onnxruntime``: sessions, bindings, and their values."""

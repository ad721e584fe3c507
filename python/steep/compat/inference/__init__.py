"""``onnxruntime``: sessions, bindings, and the values that pass through them."""

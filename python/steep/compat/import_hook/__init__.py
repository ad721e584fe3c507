"""The import hook for ``onnxruntime`` and ``torch_ort``, and its tables of names."""

"""``onnxruntime.training.onnxblock`` and ``artifacts``: training models made of blocks."""

"""``onnxruntime.training.onnxblock`` and ``artifacts``: training models built of blocks."""

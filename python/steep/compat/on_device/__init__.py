"""``onnxruntime.training.api``: training from files, without PyTorch."""

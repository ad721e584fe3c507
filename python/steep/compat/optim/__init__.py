"""``onnxruntime.training.optim``: optimizers, schedules, loss scalers."""

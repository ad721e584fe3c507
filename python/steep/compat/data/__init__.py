"""``onnxruntime.training.utils``: samplers, nested arguments, names of dtypes."""

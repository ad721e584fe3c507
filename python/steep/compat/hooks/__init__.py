"""``onnxruntime.training.utils.hooks``: statistics of activations, and what merges their files."""

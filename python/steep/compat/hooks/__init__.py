"""``onnxruntime.training.utils.hooks``: statistics of activations, and how to compare them."""

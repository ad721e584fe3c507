"""``onnxruntime.training.ortmodule``: options, environment variables, fallback policies."""

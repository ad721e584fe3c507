"""``onnxruntime.training.ORTTrainer``, described by options, and its checkpoints."""

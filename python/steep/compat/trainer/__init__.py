"""``onnxruntime.training.ORTTrainer``, configured by options, and its checkpoints."""

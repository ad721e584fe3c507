"""``trainer`` and ``ORTTrainer``: a whole training step in the engine."""

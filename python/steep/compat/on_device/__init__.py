"""``onnxruntime.training.api``: on-device training from files, without PyTorch."""

"""Checkpoint files of on-device training: ONNX Runtime's format and Steep's, read and written."""

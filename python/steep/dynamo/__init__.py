"""Capture by PyTorch's tracer, Dynamo."""

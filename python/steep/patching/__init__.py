"""Temporary changes of PyTorch, which are undone on every way out."""

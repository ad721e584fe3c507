"""Runs a lowered graph as a call of PyTorch, with its backward."""

"""Compares a graph's first step with PyTorch's."""

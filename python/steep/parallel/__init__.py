"""Data-parallel training: each process has its own rows, and all have the same weights."""

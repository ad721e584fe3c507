"""Training that several processes share: each feeds its own rows, and all have the same weights."""

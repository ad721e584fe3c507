"""The second API for training: a forward and a backward graph, run apart."""

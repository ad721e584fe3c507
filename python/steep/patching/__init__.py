"""What is changed in PyTorch for a while, and put back on every way out."""

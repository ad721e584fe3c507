"""What Steep uses of PyTorch that is not public: a module for each area, and nothing elsewhere."""

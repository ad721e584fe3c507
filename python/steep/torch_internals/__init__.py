"""The private parts of PyTorch that Steep uses, one module per area.

No other code uses private parts.
"""

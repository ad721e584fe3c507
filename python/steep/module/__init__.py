"""``ORTModule``: a module whose forward and backward run in the engine."""

"""PyTorch's FX graphs, and functions of symbols."""

from __future__ import annotations

from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.utils._sympy.functions import make_opaque_unary_fn

__all__ = ["LazyGraphModule", "make_opaque_unary_fn"]

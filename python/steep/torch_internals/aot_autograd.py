"""Traces a graph to functional ATen operators."""

from __future__ import annotations

from torch._functorch.aot_autograd import aot_export_module

__all__ = ["aot_export_module"]

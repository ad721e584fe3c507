"""The trace of a graph down to functional ATen."""

from __future__ import annotations

from torch._functorch.aot_autograd import aot_export_module

__all__ = ["aot_export_module"]

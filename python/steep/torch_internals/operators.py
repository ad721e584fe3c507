"""PyTorch's operators: the namespace `aten`, what calls of them are, what they are composed of."""

from __future__ import annotations

import torch
from torch import _foreach_mul_ as foreach_mul_, _sym_sqrt as sym_sqrt
from torch._C._nn import pad
from torch._decomp import (
    _should_decompose_because_unsafe_op as is_composite_but_unsafe,
    decomposition_table,
)
from torch._ops import HigherOrderOperator, OpOverload
from torch._refs import tensor as tensor_of_refs

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "aten",
    "decomposition_table",
    "foreach_mul_",
    "is_composite_but_unsafe",
    "pad",
    "sym_sqrt",
    "tensor_of_refs",
]

aten = torch.ops.aten

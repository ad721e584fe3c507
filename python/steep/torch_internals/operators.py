"""PyTorch's operators: the namespace `aten`, operator overloads, schemas and decompositions."""

from __future__ import annotations

import torch
from torch import _decomp as decompositions, _foreach_mul_ as foreach_mul_, _sym_sqrt as sym_sqrt
from torch._C import FunctionSchema
from torch._C._nn import pad
from torch._decomp import (
    _should_decompose_because_unsafe_op as is_composite_but_unsafe,
    decomposition_table,
)
from torch._ops import HigherOrderOperator, OpOverload
from torch._refs import tensor as tensor_of_refs

__all__ = [
    "DISPATCH_CACHE",
    "HigherOrderOperator",
    "OpOverload",
    "aten",
    "can_decompose",
    "decomposition_table",
    "decompositions",
    "foreach_mul_",
    "is_composite_but_unsafe",
    "name_of",
    "overload_of",
    "pad",
    "schema_of",
    "sym_sqrt",
    "tensor_of_refs",
]

aten = torch.ops.aten

DISPATCH_CACHE = "_dispatch_cache"
"""The attribute of an ``OpOverload`` that caches its kernels by dispatch key."""


def schema_of(operator: OpOverload) -> FunctionSchema:
    """Return the schema: arguments, mutations, and the name with its namespace."""
    schema: FunctionSchema = operator._schema
    return schema


def name_of(operator: OpOverload) -> str:
    """Return the name without namespace and overload: "add_" of "aten::add_.Tensor"."""
    return str(operator._schema.name).partition("::")[2]


def overload_of(operator: OpOverload) -> str:
    """Return the name of the overload: "Tensor" of "aten::add_.Tensor"."""
    return str(operator._overloadname)


def can_decompose(operator: OpOverload) -> bool:
    """Return whether ``operator.decompose`` computes the operator by others."""
    return bool(operator._can_decompose())

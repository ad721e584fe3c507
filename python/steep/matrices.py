"""Linear algebra by operators of the engine's own, where ONNX has no words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnxscript
import torch
from onnxscript import ir, opset18
from torch.onnx._internal.exporter._tensors import SymbolicTensor


def _node(op: str, inputs: Sequence[Any], dtypes: Sequence[Any] = (), **flags: bool) -> list[Any]:
    """Add a node of the engine's own domain: a result of each dtype, the first input's for None."""
    recorder: Any = onnxscript.evaluator.default()
    results = [SymbolicTensor(recorder.opset) for _ in dtypes]
    for result, dtype in zip(results, dtypes, strict=True):
        result.dtype = inputs[0].dtype if dtype is None else dtype
    attributes = [ir.AttrInt64(name, int(flag)) for name, flag in flags.items()]
    recorder.nodes.append(
        ir.Node("steep", op, list(inputs), attributes, outputs=results, version=1)
    )
    return results


def _turned(matrices: Any, *like: Any) -> Any:
    """Return the transposes of a stack of matrices; its rank is that of one of ``like``, if given.

    What no translation returns has no shape of its own.
    """
    axes = list(range(max(len(t.shape) for t in like or (matrices,))))
    return opset18.Transpose(matrices, perm=[*axes[:-2], axes[-1], axes[-2]])


def _triangular(a: Any, b: Any, **flags: bool) -> Any:
    return _node("TriangularSolve", [a, b], [None], **flags)[0]


def _solve_triangular(
    self: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Return X in A X = B, or in X A = B."""
    if left:
        return _triangular(self, B, upper=upper, unit=unitriangular)
    x = _triangular(self, _turned(B), upper=upper, unit=unitriangular, transpose=True)
    return _turned(x, self, B)


def _triangular_solve(
    self: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Any, Any]:
    """Return X in op(A) X = B, and a copy of A."""
    x = _triangular(A, self, upper=upper, transpose=transpose, unit=unitriangular)
    return x, opset18.Identity(A)


AS_IN_TORCH: dict[Any, Any] = {
    torch.ops.aten.linalg_solve_triangular.default: _solve_triangular,
    torch.ops.aten.triangular_solve.default: _triangular_solve,
}
"""Translations by operator."""

"""Negative indices of operators for which PyTorch refuses them; ONNX counts them from the end.

In a graph of functional ATen operators, each negative index of these operators is replaced by one
that is out of range for any extent, which the engine refuses. Other indices do not change.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch

from steep.errors import DataError, OutOfRangeError
from steep.torch_internals.operators import aten

_OPERANDS = {
    aten.embedding.default: 1,
    aten.gather.default: 2,
    aten.index_add.default: 2,
    aten.index_copy.default: 2,
    aten.index_select.default: 2,
    aten.bincount.default: 0,
    aten.max_unpool2d.default: 1,
    aten.max_unpool3d.default: 1,
    aten.scatter.reduce: 2,
    aten.scatter.src: 2,
    aten.scatter.value: 2,
    aten.scatter.value_reduce: 2,
    aten.scatter_add.default: 2,
    aten.scatter_reduce.two: 2,
}
"""Position of the index operand, by operator."""

_REPEATS = {aten.repeat_interleave.Tensor: 0, aten.repeat_interleave.self_Tensor: 1}
"""Position of the operand with the numbers of repeats, by operator."""

_MOST = 2**46 - 1
"""The engine refuses this number of repeats, which exceeds any memory."""

_FROM_THE_FRONT = {
    *(aten.arange.default, aten.arange.start, aten.arange.start_step),
    *(aten.argmax.default, aten.argmin.default, aten.argsort.default, aten.nonzero.default),
}
"""Operators whose results are not negative."""


def refuse_negative(graph_module: torch.fx.GraphModule) -> None:
    """Clear the sign bit of all indices that PyTorch refuses when they are negative."""
    for module in graph_module.modules():  # branches are nested graphs
        if isinstance(module, torch.fx.GraphModule):
            _refuse_in(module.graph)


def _refuse_in(graph: torch.fx.Graph) -> None:
    without: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.target in _REPEATS:
            _refuse_negative_repeats(graph, node, _REPEATS[node.target])
        at = _OPERANDS.get(node.target)
        index = None if at is None else node.args[at]
        if not isinstance(index, torch.fx.Node) or index.target in _FROM_THE_FRONT:
            continue
        if index not in without:
            largest = torch.iinfo(index.meta["val"].dtype).max
            with graph.inserting_after(index):
                without[index] = graph.call_function(aten.bitwise_and.Scalar, (index, largest), {})
            without[index].meta = {**index.meta}
        node.update_arg(at, without[index])


def _refuse_negative_repeats(graph: torch.fx.Graph, node: torch.fx.Node, at: int) -> None:
    repeats = node.args[at]
    if not isinstance(repeats, torch.fx.Node):
        return
    value = repeats.meta["val"].to(torch.int64)
    with graph.inserting_before(node):
        wide = graph.call_function(aten._to_copy.default, (repeats,), {"dtype": torch.int64})
        most = graph.call_function(aten.bitwise_and.Scalar, (wide, _MOST), {})
    for operation in (wide, most):
        operation.meta = {**repeats.meta, "val": value}
    node.update_arg(at, most)


@contextlib.contextmanager
def errors_of_pytorch() -> Iterator[None]:
    """Raise the engine's errors about values as subclasses of PyTorch's errors.

    An error about an index whose sign bit was cleared names the original index.
    """
    try:
        yield
    except DataError as e:
        bounds = re.fullmatch(r"an index in \[-\d+, (\d+)\)", e.expected)
        error = OutOfRangeError if bounds else _BY_OP.get(e.op)
        if error is None:
            raise
        what, parts = e.what, {k: getattr(e, k) for k in _PARTS}
        for end in (1 << 31, 1 << 63):
            if bounds and e.received.isdigit() and end - _NEAR <= int(e.received) < end:
                what = "An index is negative, which this operator of PyTorch does not take."
                parts["expected"] = f"an index in [0, {bounds[1]})"
                parts["received"] = str(int(e.received) - end)
        raise error(what, **parts) from None


class _LinAlgError(DataError, torch.linalg.LinAlgError):  # type: ignore[misc]
    """A matrix has no inverse or no factorization: also PyTorch's error."""


class _DivisionError(DataError, RuntimeError):
    """An integer was divided by zero: a RuntimeError in PyTorch."""


_BY_OP: dict[str, type[DataError]] = {
    "Div": _DivisionError,
    "Mod": _DivisionError,
    "steep.Cholesky": _LinAlgError,
    "steep.LU": _LinAlgError,
    "steep.SoftmaxCrossEntropy": OutOfRangeError,
    "steep.SoftmaxCrossEntropyGrad": OutOfRangeError,
}
"""Errors by operator, for operators whose values can be wrong in one way only."""

_PARTS = ("node", "op", "expected", "received", "remedy")

_NEAR = 1 << 24
"""Largest magnitude of negative indices that are recognised; others count as too large."""

"""Compares a captured graph's values with PyTorch's; runs the graph in PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from steep.graph.compiled_graph import CompiledGraph
from steep.patching.restore import without_hooks, without_transforms
from steep.verify.copies import copies_of
from steep.verify.difference import TOLERANCES, Difference, difference
from steep.verify.replay_random import Masks

# if PyTorch's rounding error exceeds the tolerance: how many times the error is allowed
ROUNDINGS = 3
_NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclasses.dataclass
class Outcome:
    """The result of comparing a graph so far; ``largest`` is None if nothing was compared."""

    largest: float | None = None

    def note(self, relative: float) -> None:
        """Record a relative difference."""
        self.largest = max(self.largest or 0.0, relative)


class Comparison:
    """One step of a graph that is compared: its arguments, modes and tolerance.

    Attributes:
        compiled: the graph in the engine.
        reference: the same graph, for PyTorch to run.
        pristine: copies of the arguments, made before the step.
        tolerance: the largest difference that is allowed, relative to the largest entry.
        grad_mode: whether PyTorch recorded autograd histories.
        autocast: whether autocast was on, and its dtype.
    """

    def __init__(
        self,
        compiled: CompiledGraph,
        reference: torch.fx.GraphModule,
        arguments: Sequence[Any],
    ) -> None:
        self.compiled = compiled
        self.reference = reference
        self.pristine = copies_of(arguments)
        self.tolerance = tolerance_of(reference, compiled.lowered.context.precision)
        self.grad_mode = torch.is_grad_enabled()
        self.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def difference(
        self, received: object, expected: object, least: float = 0.0
    ) -> Difference | None:
        """Compare two values of this graph; None: equal.

        ``least`` is the smallest number that differences are relative to.
        """
        overflows = self.tolerance == TOLERANCES[torch.float16]
        return difference(received, expected, least, overflows=overflows)


def run_in_torch(
    reference: torch.fx.GraphModule, arguments: Sequence[Any], keep: set[str], masks: Masks
) -> tuple[dict[str, Any], Any]:
    """Return the values of the nodes named in ``keep``, and the outputs. Raises Unmatched."""
    interpreter = _Keeping(reference, keep)
    masks.rewind()
    # an outer checkpoint's hooks count saved tensors, and function transforms forbid such hooks
    with masks, without_hooks(), without_transforms():
        outputs = interpreter.run(*arguments)
    masks.check_all_used()
    return interpreter.values, outputs


class _Keeping(torch.fx.Interpreter):
    def __init__(self, graph_module: torch.fx.GraphModule, keep: set[str]) -> None:
        super().__init__(graph_module)
        self.extra_traceback = False
        self.keep = keep
        self.values: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> object:
        value = super().run_node(n)
        if n.name in self.keep:
            self.values[n.name] = value
        return value


def tolerance_of(graph_module: torch.fx.GraphModule, precision: str) -> float:
    """Return the tolerance (``TOLERANCES``) for the narrowest dtype that a graph computes in."""
    values = (n.meta.get("example_value") for n in graph_module.graph.nodes)
    dtypes = {v.dtype for v in values if isinstance(v, torch.Tensor)}
    dtypes.add(_NARROW.get(precision, torch.float64))
    return max(TOLERANCES.get(d, 0.0) for d in dtypes)

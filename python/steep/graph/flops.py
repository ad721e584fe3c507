"""Counts the floating-point operations of a captured graph, in the engine and in PyTorch."""

from __future__ import annotations

import functools
import logging

import torch
import torch.fx
from torch.utils.flop_counter import FlopCounterMode

from steep.patching.restore import without_transforms
from steep.torch_internals.dispatch import FakeTensorMode

log = logging.getLogger("steep")


class Arithmetic:
    """Counts the operations of a captured graph's products and convolutions, on first use.

    Args:
        graph_module: a copy of the captured graph, with example values of its placeholders;
            counting consumes it.
        in_torch: names of operations that PyTorch runs; None: all.
    """

    def __init__(self, graph_module: torch.fx.GraphModule, in_torch: set[str] | None) -> None:
        self._graph_module: torch.fx.GraphModule | None = graph_module
        placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        self._descriptions = [_describe(n.meta["example_value"]) for n in placeholders]
        self._in_torch = in_torch
        for n in graph_module.graph.nodes:  # release the tracer's objects
            n.meta.clear()

    @functools.cached_property
    def flops(self) -> tuple[int, int] | None:
        """Operations of a forward: (in the engine, in PyTorch). None if they cannot be counted."""
        graph_module, self._graph_module = self._graph_module, None
        if graph_module is None:  # another thread is counting
            return None
        counting = _Counting(graph_module)
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with mode, torch.no_grad(), without_transforms(), counting.counter:
                counting.run(*[_make_value(g) for g in self._descriptions])
        except Exception as e:  # noqa: BLE001 - such as of an operator that reads values
            log.info("the arithmetic of a graph cannot be counted: %s", e)
            return None
        total = sum(counting.flops.values())
        if self._in_torch is None:
            return 0, total
        there = sum(counting.flops.get(name, 0) for name in self._in_torch)
        return total - there, there


class _Counting(torch.fx.Interpreter):
    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.extra_traceback = False
        self.counter = FlopCounterMode(display=False)
        self.flops: dict[str, int] = {}

    def run_node(self, n: torch.fx.Node) -> object:
        before = self.counter.get_total_flops()
        value = super().run_node(n)
        self.flops[n.name] = int(self.counter.get_total_flops() - before)
        return value


def _describe(value: object) -> object:
    """Return a number, or a tensor's (extents, strides, dtype), as they were at the capture."""
    if isinstance(value, torch.Tensor):
        return [hint(d) for d in value.shape], [hint(d) for d in value.stride()], value.dtype
    return hint(value)


def _make_value(description: object) -> object:
    return (
        torch.empty_strided(*description[:2], dtype=description[2])
        if isinstance(description, tuple)
        else description
    )


def hint(value: object) -> object:
    """Return the value that a number had at the capture, without adding a guard on it."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat)) else value

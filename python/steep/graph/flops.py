"""How much a captured graph calculates, in the engine and in PyTorch."""

from __future__ import annotations

import functools
import logging

import torch
import torch.fx
from torch.utils.flop_counter import FlopCounterMode

from steep.patching.restore import transforms_left
from steep.torch_internals.dispatch import FakeTensorMode

log = logging.getLogger("steep")


class Arithmetic:
    """Counts the operations of a captured graph's products and convolutions when asked for them.

    Args:
        graph_module: a graph of its own, with what its placeholders stood for.
        in_torch: names of operations that PyTorch runs; None: all.
    """

    def __init__(self, graph_module: torch.fx.GraphModule, in_torch: set[str] | None) -> None:
        self._graph_module: torch.fx.GraphModule | None = graph_module
        placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        self._given = [_described(n.meta["example_value"]) for n in placeholders]
        self._in_torch = in_torch
        for n in graph_module.graph.nodes:  # what is traced with it is not to be held
            n.meta.clear()

    @functools.cached_property
    def flops(self) -> tuple[int, int] | None:
        """Those of the engine, and of PyTorch, in forward; None where it cannot be counted."""
        graph_module, self._graph_module = self._graph_module, None
        if graph_module is None:  # another thread counts
            return None
        counting = _Counting(graph_module)
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with mode, torch.no_grad(), transforms_left(), counting.counter:
                counting.run(*[_made(g) for g in self._given])
        except Exception as e:  # noqa: BLE001 - of any operator, such as one that looks at values
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


def _described(value: object) -> object:
    """Return a number, or the extents and dtype of a tensor, at the time of the capture."""
    if isinstance(value, torch.Tensor):
        return [hint(d) for d in value.shape], [hint(d) for d in value.stride()], value.dtype
    return hint(value)


def _made(described: object) -> object:
    return (
        torch.empty_strided(*described[:2], dtype=described[2])
        if isinstance(described, tuple)
        else described
    )


def hint(value: object) -> object:
    """Return the value that a number had at the capture, without adding a guard on it."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat)) else value

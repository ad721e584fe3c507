"""Random numbers of a graph: PyTorch draws them before a run, in order, from its generator.

Dropout is an exception: the engine draws its masks, from a seed of PyTorch's generator.
torch.export refuses writes to a dropout's result; they go to a copy, which the engine leaves out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.node import Argument, map_aggregate

from steep.lowering.aliasing import all_written_by, called_name, insert_copy, memory_of
from steep.torch_internals.operators import OpOverload, name_of, overload_of, schema_of

# These read only shape, strides and dtype of their operand.
_OF_THE_LIKE = {
    *("rand_like", "randn_like", "randint_like", "uniform", "normal_functional"),
    *("exponential", "cauchy", "log_normal", "geometric"),
}
_OF_DROPOUT = ("dropout", "scaled_dot_product", "lstm", "gru", "rnn_")


class DrawDependsOnResults(Exception):
    """Random numbers depend on results of the graph; ``node`` is the name of the operation."""

    def __init__(self, node: torch.fx.Node) -> None:
        super().__init__(f"{node.target} draws random numbers by values that the graph computes")
        self.node = node.name


@dataclasses.dataclass(frozen=True)
class Draws:
    """Calls that draw random numbers before a run.

    Attributes:
        calls: (function, args, kwargs); ``_Extent`` and ``_Like`` in them stand for values that
            depend on extents.
        examples: fake results of the calls.
        where: by symbol, the position of a tensor of the graph, and its axis.
    """

    calls: list[tuple[Callable[..., torch.Tensor], tuple[Any, ...], dict[str, Any]]]
    examples: list[torch.Tensor]
    where: dict[sympy.Symbol, tuple[int, int]]  # by symbol: (tensor, axis)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Draw the numbers for a graph with these tensors as inputs."""
        if not self.calls:
            return []
        extents = {symbol: tensors[i].shape[axis] for symbol, (i, axis) in self.where.items()}

        def value_of(value: object) -> object:
            return value.at(extents) if isinstance(value, (_Extent, _Like)) else value

        return [
            f(*map_aggregate(a, value_of), **map_aggregate(k, value_of)) for f, a, k in self.calls
        ]


@dataclasses.dataclass(frozen=True)
class _Extent:
    expression: sympy.Expr

    def at(self, extents: dict[sympy.Symbol, int]) -> int:
        return int(self.expression.xreplace(extents))


@dataclasses.dataclass(frozen=True)
class _Like:
    """A tensor whose values are never read."""

    shape: list[_Extent]
    strides: list[_Extent]
    dtype: torch.dtype

    def at(self, extents: dict[sympy.Symbol, int]) -> torch.Tensor:
        shape, strides = ([e.at(extents) for e in some] for some in (self.shape, self.strides))
        return torch.empty_strided(shape, strides, dtype=self.dtype)


def take_draws(graph_module: torch.fx.GraphModule, fakes: Sequence[torch.Tensor]) -> Draws:
    """Replace random nodes of the graph by inputs after its others; return how to draw them.

    Raises NotBefore.
    """
    for inner in graph_module.modules():
        if isinstance(inner, torch.fx.GraphModule) and inner is not graph_module:
            for node in filter(_draws, inner.graph.nodes):
                raise DrawDependsOnResults(node)  # in a branch, which may not run
    where = {
        extent.node.expr: (i, axis)
        for i, fake in enumerate(fakes)
        for axis, extent in enumerate(fake.shape)
        if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol
    }
    draws = Draws([], [], where)
    last = [n for n in graph_module.graph.nodes if n.op == "placeholder"][-1:]
    for node in [n for n in graph_module.graph.nodes if _draws(n)]:
        draws.calls.append(_call(node, where))
        draws.examples.append(node.meta["val"])
        # a part of a graph may have no inputs
        first = next(iter(graph_module.graph.nodes))
        place = graph_module.graph.inserting_after if last else graph_module.graph.inserting_before
        with place(*last or [first]):
            draw = graph_module.graph.placeholder(f"drawn_{len(draws.calls)}")
        draw.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(draw)
        graph_module.graph.erase_node(node)
        last = [draw]
    if draws.calls:
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()
    return draws


def copy_written_dropouts(graph: torch.fx.Graph) -> None:
    """Insert a copy of each dropout's result that a later call of a captured graph writes."""
    written = {memory_of(t) for n in graph.nodes for t in all_written_by(n)} - {None}
    seen: set[int | None] = set()
    for n in list(graph.nodes):
        is_new = memory_of(n) not in seen  # a dropout of nothing returns its argument
        seen.add(memory_of(n))
        is_dropout = n.op == "call_function" and "dropout" in called_name(n)
        if is_dropout and is_new and memory_of(n) in written:
            insert_copy(n)


def _draws(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    name = name_of(node.target)
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return random and not any(part in name for part in _OF_DROPOUT)


def _call(
    node: torch.fx.Node, symbols: Collection[Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    assert isinstance(node.target, OpOverload)
    like = name_of(node.target) in _OF_THE_LIKE
    if schema_of(node.target).name == "aten::bernoulli":
        like = overload_of(node.target) == "p"

    def extent(value: int | torch.SymInt) -> _Extent:
        expression = value.node.expr if isinstance(value, torch.SymInt) else sympy.Integer(value)
        if not expression.free_symbols <= set(symbols):
            raise DrawDependsOnResults(node)
        return _Extent(expression)

    def value_of(value: Argument) -> object:
        if isinstance(value, torch.fx.Node):
            value = value.meta["val"]
            if isinstance(value, torch.Tensor) and like:
                shape, strides = (
                    [extent(n) for n in some] for some in (value.shape, value.stride())
                )
                return _Like(shape, strides, value.dtype)
            if not isinstance(value, torch.SymInt):
                raise DrawDependsOnResults(node)
            return extent(value)
        return value

    return node.target, map_aggregate(node.args, value_of), map_aggregate(node.kwargs, value_of)

"""How outputs of a captured graph are made from a call's arguments and the engine's results.

Outputs that share memory in PyTorch share it here: the engine computes the tensor that owns the
memory, and PyTorch makes the others as views of it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from steep.graph.captured_graph import OF_DATA
from steep.lowering.aliasing import memory_of, written_by
from steep.lowering.lower import cannot_lower
from steep.torch_internals.autograd import get_data_attr


@dataclasses.dataclass(frozen=True)
class CallValues:
    """The values of one call, from which outputs are made.

    Attributes:
        arguments: values of the lowered graph's placeholders.
        values: the engine's results, without those that are written to arguments.
        numbers: numbers that Python calculated.
    """

    arguments: Sequence[Any]
    values: Sequence[torch.Tensor]
    numbers: Sequence[int | float]


@dataclasses.dataclass(frozen=True)
class Computed:
    """A tensor that the engine computes, with memory of its own."""

    value: int  # index into CallValues.values

    def of(self, call: CallValues) -> torch.Tensor:
        """Return the tensor."""
        return call.values[self.value]


@dataclasses.dataclass(frozen=True)
class ComputedNumber:
    """A number that the engine computes, as a tensor of one element (``x.item()``)."""

    value: int

    def of(self, call: CallValues) -> bool | int | float:
        """Return the number."""
        number: bool | int | float = call.values[self.value].item()
        return number


@dataclasses.dataclass(frozen=True)
class Number:
    """A number that Python calculates from numbers and extents of the arguments."""

    number: int  # index into CallValues.numbers

    def of(self, call: CallValues) -> int | float:
        """Return the number."""
        return call.numbers[self.number]


@dataclasses.dataclass(frozen=True)
class Constant:
    """A constant of the graph: None, or a number for which the graph is valid."""

    constant: bool | int | float | None

    def of(self, call: CallValues) -> bool | int | float | None:
        """Return the constant."""
        return self.constant


@dataclasses.dataclass(frozen=True)
class ViewOfArgument:
    """An argument, or a view of one: a write to it is a write to the argument."""

    chain: torch.fx.GraphModule  # its inputs are the arguments

    def of(self, call: CallValues) -> torch.Tensor:
        """Let PyTorch make the view."""
        return self.chain.forward(*call.arguments)


@dataclasses.dataclass(frozen=True)
class ViewOfValue:
    """A view of a tensor that the engine computes; other outputs share its memory."""

    chain: torch.fx.GraphModule  # its inputs are the arguments and that tensor
    value: int

    def of(self, call: CallValues) -> torch.Tensor:
        """Let PyTorch make the view."""
        return self.chain.forward(*call.arguments, call.values[self.value])


Output = Computed | ComputedNumber | Number | Constant | ViewOfArgument | ViewOfValue


def outputs_and_values(
    graph: torch.fx.Graph, outputs: Sequence[Any], numbers: Mapping[torch.fx.Node, int]
) -> tuple[list[Output], list[torch.fx.Node]]:
    """Return how each output is made, and the nodes that the engine computes.

    No two of these nodes share memory. ``numbers`` are the nodes that Python calculates. Raises
    CannotLower if an output shares memory with another but is not a view.
    """
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    memory_of_arguments = {memory_of(n) for n in placeholders} - {None}
    owners: dict[int, torch.fx.Node] = {}
    for n in graph.nodes:
        if (memory := memory_of(n)) is not None:
            owners.setdefault(memory, n)
    counts = Counter(memory_of(n) for n in {n for n in outputs if isinstance(n, torch.fx.Node)})
    values: dict[torch.fx.Node, int] = {}
    recipes: list[Output] = []
    for node in outputs:
        memory = memory_of(node) if isinstance(node, torch.fx.Node) else None
        if not isinstance(node, torch.fx.Node):
            recipes.append(Constant(node))
        elif node in numbers:
            recipes.append(Number(numbers[node]))
        elif memory is not None and memory in memory_of_arguments:
            recipes.append(ViewOfArgument(_views(placeholders, node, None)))
        else:
            shared = memory is not None and counts[memory] > 1
            base = owners[memory] if shared and memory is not None else node
            value = values.setdefault(base, len(values))
            if base is not node:
                recipes.append(ViewOfValue(_views(placeholders, node, base), value))
            elif _is_tensor(node):
                recipes.append(Computed(value))
            else:
                recipes.append(ComputedNumber(value))
    return recipes, list(values)


def _views(
    placeholders: list[torch.fx.Node], node: torch.fx.Node, base: torch.fx.Node | None
) -> torch.fx.GraphModule:
    """Return a graph of view calls that makes ``node`` from the arguments or from ``base``."""
    graph = torch.fx.Graph()
    copies = {p: graph.placeholder(p.name) for p in placeholders}
    if base is not None:
        copies[base] = graph.placeholder(f"{base.name}_value")

    def copy(n: torch.fx.Node) -> torch.fx.Node:
        if n not in copies:
            of_tensors = any(_is_tensor(i) or _is_several(i) for i in n.all_input_nodes)
            if n.op not in ("call_function", "call_method") or not (
                memory_of(n) in (None, memory_of(node)) and _reads(n, memory_of(node)) == of_tensors
            ):
                reason = f"the result {node.name} shares memory with another"
                raise cannot_lower(reason, node, "clone() one of the two")
            target = written_by(n)  # the engine has already written it
            copies[n] = graph.node_copy(n, copy) if target is None else copy(target)
            # writes to .data do not change the version of a tensor that autograd saved
            if n.meta.get(OF_DATA):
                copies[n].target = get_data_attr
        return copies[n]

    graph.output(copy(node))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _is_tensor(n: torch.fx.Node) -> bool:
    return isinstance(n.meta.get("example_value"), torch.Tensor)


def _reads(n: torch.fx.Node, memory: int | None) -> bool:
    """Return whether an operand is a tensor in this memory, or a tuple of tensors, as of split."""
    return any(memory_of(i) == memory or _is_several(i) for i in n.all_input_nodes)


def _is_several(n: torch.fx.Node) -> bool:
    return isinstance(n.meta.get("example_value"), (tuple, list))

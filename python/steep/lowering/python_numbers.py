"""Python numbers that a captured graph takes, and Python's arithmetic with them.

Dynamo passes numbers that have changed between calls to a graph as symbols. At each call Python
computes with them as usual: with Python integers, in float64, by ``math``. The graph gets the
results as tensors without dimensions. The same holds for floats that forward computes from extents.
Integers computed from extents stay in the graph, since they are extents of its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from steep.lowering.lower import outputs_of
from steep.torch_internals.dispatch import FakeTensorMode
from steep.torch_internals.operators import aten

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}


def number_of(node: torch.fx.Node) -> torch.SymInt | torch.SymFloat | None:
    """Return the symbol of a Python number that the graph takes and that may change; else None.

    Dynamo passes a float as a tensor, from which the graph takes the number by ``item()``.
    """
    if node.op == "placeholder":
        value = node.meta["example_value"]
        return value if isinstance(value, (torch.SymInt, torch.SymFloat)) else None
    if node.op == "call_method" and node.target == "item":
        (source,) = node.args
        argument = source.meta.get("grapharg") if isinstance(source, torch.fx.Node) else None
        if argument is not None and argument.pass_arg_as_tensor:
            return node.meta["example_value"]
    return None


def takes_numbers(graph: torch.fx.Graph) -> bool:
    """Return whether a graph computes with Python numbers that may change."""
    return any(number_of(n) is not None or _is_float(n) for n in graph.nodes)


def _is_float(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.SymFloat)


def reads_number(graph: torch.fx.Graph, name: str) -> bool:
    """Return whether the operation of this name takes a number that may change."""
    operands = [i for n in graph.nodes if n.name == name for i in n.all_input_nodes]
    return any(isinstance(i.meta.get("example_value"), _SYMBOLS) for i in operands)


class Numbers:
    """Computes numbers for a graph in Python, and changes the graph to take the results.

    Args:
        graph: has a placeholder for each argument. Gets one more for each number that a PyTorch
            call reads.
        fixed: names of operations that accept no tensor for a number: the number becomes a
            constant, with a guard. None: all operations.

    Attributes:
        results: which numbers are results of the graph: their positions by node.
    """

    def __init__(
        self, graph: torch.fx.Graph, fixed_nodes: frozenset[str] | None, fake_mode: FakeTensorMode
    ) -> None:
        self._dtypes: list[torch.dtype] = []
        self.results: dict[torch.fx.Node, int] = {}
        self._calculate_all = self._calculation = None
        placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        if not takes_numbers(graph):
            return
        calculation = torch.fx.Graph()
        arguments = {p: calculation.placeholder(p.name) for p in placeholders}
        numbers, extents = _calculate(graph, arguments, calculation)
        readers_of = {
            node: [u for u in node.users if not (u in numbers or u in extents or u.op == "output")]
            for node in numbers
        }
        _fix(readers_of, fixed_nodes)
        last, inputs = placeholders[-1], []
        for node, readers in readers_of.items():
            if readers:
                with graph.inserting_after(last):
                    last = graph.placeholder(f"{node.name}_given")
                self._dtypes.append(_dtype(node))
                last.meta["example_value"] = _fake(self._dtypes[-1], fake_mode)
                for reader in readers:
                    reader.replace_input_with(node, last)
                inputs.append(numbers[node])
        (end,) = (n for n in graph.nodes if n.op == "output")
        results = [n for n in dict.fromkeys(outputs_of(end)) if n in numbers]
        self.results = {n: k for k, n in enumerate(results)}
        for node in placeholders:
            if number_of(node) is not None:  # no node reads it any more
                node.meta["example_value"] = _fake(_dtype(node), fake_mode)
        self._number_nodes = [n for n in numbers if n.op != "placeholder"]
        calculation.output((inputs, [numbers[n] for n in results]))
        calculation.eliminate_dead_code()
        self._calculation = torch.fx.GraphModule(torch.nn.Module(), calculation)
        self._calculate_all = self._calculation.forward

    def remove_computed_nodes(self) -> None:
        """Remove the nodes that Python computes; call it after they are no longer graph outputs."""
        if self._calculate_all is not None:
            for node in reversed(self._number_nodes):
                if not node.users:
                    node.graph.erase_node(node)

    def tensors(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return the numbers for the graph as tensors, given the values of its placeholders."""
        if not self._dtypes:
            return []
        numbers = self._calculate_all(*arguments)[0]  # type: ignore[misc]
        pairs = zip(numbers, self._dtypes, strict=True)
        return [torch.as_tensor(number, dtype=dtype) for number, dtype in pairs]

    def calculate_results(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the numbers that are results of the graph."""
        if not self.results:
            return []
        results: list[Any] = self._calculate_all(*arguments)[1]  # type: ignore[misc]
        return results


def _calculate(
    graph: torch.fx.Graph,
    arguments: dict[torch.fx.Node, torch.fx.Node],
    calculation: torch.fx.Graph,
) -> tuple[dict[torch.fx.Node, torch.fx.Node], dict[torch.fx.Node, torch.fx.Node]]:
    """Copy the arithmetic on numbers and on extents of arguments to ``calculation``.

    Returns the copied nodes in two maps by original node: those that the graph takes as inputs, and
    integers of extents, which the graph computes itself.
    """
    numbers: dict[torch.fx.Node, torch.fx.Node] = {}
    extents: dict[torch.fx.Node, torch.fx.Node] = {}
    of_extents = set()  # inputs that depend on extents only

    def copy_of(n: torch.fx.Node) -> torch.fx.Node:
        return numbers[n] if n in numbers else extents[n]

    for node in graph.nodes:
        if number_of(node) is not None:
            if node.op == "placeholder":
                numbers[node] = arguments[node]
            else:
                numbers[node] = calculation.call_method("item", (arguments[node.args[0]],))
        elif node.target is aten.sym_size.int and node.args[0] in arguments:
            of, axis = node.args
            extents[node] = calculation.call_function(_extent, (arguments[of], axis))
        elif (
            _gives_number(node)
            and node.all_input_nodes
            and all(n in numbers or n in extents for n in node.all_input_nodes)
        ):
            by_numbers = any(n in numbers and n not in of_extents for n in node.all_input_nodes)
            is_given = by_numbers or _is_float(node) or node.target is torch.scalar_tensor
            (numbers if is_given else extents)[node] = calculation.node_copy(node, copy_of)
            if is_given and not by_numbers:
                of_extents.add(node)
    return numbers, extents


def _fix(
    readers_of: dict[torch.fx.Node, list[torch.fx.Node]], fixed_nodes: frozenset[str] | None
) -> None:
    """Replace symbols by their present values in ``fixed_nodes``, which adds guards."""
    for node, readers in readers_of.items():
        example = node.meta["example_value"]
        for reader in list(readers):
            is_fixed = fixed_nodes is None or reader.name in fixed_nodes
            if is_fixed and not isinstance(example, torch.Tensor):
                reader.replace_input_with(node, _kind(example)(example))
                readers.remove(reader)


def _extent(argument: torch.Tensor, axis: int) -> int:
    extent: int = argument.shape[axis]
    return extent


def _gives_number(node: torch.fx.Node) -> bool:
    """Return whether a call returns a number, or a scalar tensor, as Dynamo returns floats."""
    value = node.meta.get("example_value")
    called = node.op in ("call_function", "call_method")
    is_number = isinstance(value, (*_SYMBOLS, int, float)) or node.target is torch.scalar_tensor
    return called and is_number


def _kind(value: object) -> type:
    kind: type = value.node.pytype if isinstance(value, _SYMBOLS) else type(value)
    return kind


def _dtype(node: torch.fx.Node) -> torch.dtype:
    value = node.meta["example_value"]
    return value.dtype if isinstance(value, torch.Tensor) else _DTYPES[_kind(value)]


def _fake(dtype: torch.dtype, mode: FakeTensorMode) -> torch.Tensor:
    return mode.from_tensor(torch.zeros((), dtype=dtype))

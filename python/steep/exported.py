"""One exported graph, and the calls that it is known to hold for."""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Mapping

import torch

from steep.structure import Structure


@dataclasses.dataclass
class Exported:
    """One exported graph.

    ``inputs[i]`` is the position, among the call's tensors, of the graph's i-th input ``names[i]``.
    Parameters and buffers are inputs too: ``states`` maps graph input → name in the module. The
    last outputs are what forward leaves in the buffers ``statistics``; it counts in ``counters``.
    """

    model: bytes
    inputs: list[int]
    names: list[str]
    states: dict[str, str]
    results: Structure
    exporter: str
    reason: str
    seconds: float
    training: bool
    # Per tensor of the call: numbers, names, and of torch.export what evaluate() computes of names.
    extents: list[list[int | str]]
    statistics: list[str] = dataclasses.field(default_factory=list)
    counters: list[str] = dataclasses.field(default_factory=list)
    # of a trace that turned tensors into Python values:
    path_dependent: bool = False
    decisive: set[int] = dataclasses.field(default_factory=set)  # tensors that Python looked into
    varied: set[tuple[int, int]] = dataclasses.field(default_factory=set)  # (tensor, axis)
    examples: list[list[torch.Tensor]] = dataclasses.field(default_factory=list)
    # of an export from the cache: the extents that were asked for
    confined: set[tuple[torch.Size, ...]] | None = None

    @property
    def cached(self) -> bool:
        """Was it taken from the cache, and nothing exported since?"""
        return self.confined is not None

    def accepts(self, tensors: list[torch.Tensor]) -> bool:
        """Is the graph known to hold for tensors of these extents (and, for a trace, values)?"""
        if self.confined is not None and sizes(tensors) not in self.confined:
            return False
        symbols: dict[str, int] = {}
        derived: list[tuple[str, int]] = []
        for i, (tensor, extents) in enumerate(zip(tensors, self.extents, strict=True)):
            for axis, (size, extent) in enumerate(zip(tensor.shape, extents, strict=True)):
                if isinstance(extent, int):
                    if size != extent and (i, axis) not in self.varied:
                        return False
                elif self.exporter == "torch.export" and not extent.isidentifier():
                    derived.append((extent, size))
                elif symbols.setdefault(extent, size) != size:
                    return False
        if any(evaluate(extent, symbols) != size for extent, size in derived):
            return False
        if not self.path_dependent:
            return True
        return any(self._same_values(seen, tensors) for seen in self.examples)

    def _same_values(self, seen: list[torch.Tensor], tensors: list[torch.Tensor]) -> bool:
        return all(torch.equal(seen[i], tensors[i]) for i in self._compared(len(tensors)))

    def _compared(self, count: int) -> set[int]:
        """Of ``count`` tensors: those that the path depended on, or may have if it is not read."""
        return (set(range(count)) - set(self.inputs)) | self.decisive

    def learn(self, again: Exported, tensors: list[torch.Tensor]) -> None:
        """Another export, for these tensors, gave the same graph."""
        if self.confined is not None:
            if again.confined is not None:
                self.confined |= again.confined
            else:  # this one was made here, with all that it proves
                self.extents, self.confined = again.extents, None
                self.path_dependent, self.examples = again.path_dependent, again.examples
                self.decisive = again.decisive
            return
        for i, (tensor, extents) in enumerate(zip(tensors, self.extents, strict=True)):
            for axis, (size, extent) in enumerate(zip(tensor.shape, extents, strict=True)):
                if size != extent:
                    self.varied.add((i, axis))
        self.keep_values(tensors)

    def keep_values(self, tensors: list[torch.Tensor]) -> None:
        """Remember for which values the path was taken, if it matters."""
        if not self.path_dependent:
            return
        compared = self._compared(len(tensors))
        self.examples.append(
            [t.clone() if i in compared else t.new_empty(0) for i, t in enumerate(tensors)]
        )


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def evaluate(extent: str, symbols: Mapping[str, int]) -> int | None:
    """Return what sums and products of symbols, such as ``2*s0 + 1``, come to.

    None where a symbol is not known, or anything else stands there.
    """

    def value(node: ast.expr) -> int | None:
        match node:
            case ast.Constant(int(number)):
                return number
            case ast.Name(name):
                return symbols.get(name)
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                a, b = value(left), value(right)
                return None if a is None or b is None else _OPERATORS[type(op)](a, b)
        return None

    try:
        return value(ast.parse(extent, mode="eval").body)
    except SyntaxError:
        return None


def sizes(tensors: list[torch.Tensor]) -> tuple[torch.Size, ...]:
    """Return the extents of each tensor."""
    return tuple(t.shape for t in tensors)

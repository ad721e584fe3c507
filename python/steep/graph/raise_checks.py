"""Errors that forward raises depending on values: the graph runs to its end, then tests them.

Each is a call of ``raise_where`` in the captured graph. The tested value is one of the engine's
results, and the error is raised before anything is written or returned.
"""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Sequence

import torch
from torch.fx.node import has_side_effect


def raise_where(value: torch.Tensor, truth: bool, kind: str, *message: str) -> None:
    """Raise the built-in error ``kind`` with ``message`` if the one-element tensor is ``truth``."""
    if bool(value) is truth:
        raise getattr(builtins, kind)(*message)


has_side_effect(raise_where)


@dataclasses.dataclass(frozen=True)
class Check:
    """An error, as class name and message, and the truth value for which it is raised."""

    truth: bool
    error: Sequence[str]


def take_checks(graph: torch.fx.Graph) -> tuple[list[Check], list[torch.fx.Node]]:
    """Remove the calls of ``raise_where`` from a graph; return their errors and tested values."""
    checks, values = [], []
    for node in [n for n in graph.nodes if n.target is raise_where]:
        value, truth, *error = node.args
        checks.append(Check(truth, error))
        values.append(value)
        graph.erase_node(node)
    return checks, values

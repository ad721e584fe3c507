"""Errors that forward raises depending on values: the graph runs to its end and tests the values.

Each is a call of ``raise_where`` in the captured graph. The value that it looks at is one of the
engine's results, and the error is raised before anything is written or returned.
"""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Sequence

import torch
from torch.fx.node import has_side_effect


def raise_where(value: torch.Tensor, truth: bool, kind: str, *message: str) -> None:
    """Raise the built-in error of this kind, with this message, where ``value`` is ``truth``."""
    if bool(value) is truth:
        raise getattr(builtins, kind)(*message)


has_side_effect(raise_where)


@dataclasses.dataclass(frozen=True)
class Check:
    """What is raised, and for which truth of the value that is looked at."""

    truth: bool
    error: Sequence[str]


def take_checks(graph: torch.fx.Graph) -> tuple[list[Check], list[torch.fx.Node]]:
    """Remove the calls of ``raise_where`` from a graph; return them, and what each looks at."""
    checks, values = [], []
    for node in [n for n in graph.nodes if n.target is raise_where]:
        value, truth, *error = node.args
        checks.append(Check(truth, error))
        values.append(value)
        graph.erase_node(node)
    return checks, values

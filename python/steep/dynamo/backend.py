"""Capture by PyTorch's own tracer: its graphs run here, each under the conditions that it has.

Dynamo follows a module's Python code, cuts it where that code decides on values, and guards every
graph by what it read: extents, attributes, globals, hooks, modes, which tensors are one.
graph/compiled_graph.py compiles a graph for the engine; PyTorch runs the code between graphs, and
graphs that cannot be lowered.

This uses parts of PyTorch that are not public: patching/torch_versions.py has the releases that are
known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from steep._steep import check_passes
from steep.dynamo.dynamo_backend import DynamoBackend
from steep.lowering.capture_context import autocast_precision
from steep.providers import choices_of


def backend(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Run a graph of ``torch.compile(module, backend="steep")``; PyTorch runs what cannot be.

    ``options={"verify": True}`` compares the first step of each graph with PyTorch's,
    ``options={"providers": [...]}`` runs them there, and ``options={"disabled_passes": [...]}``
    without these, as the arguments of ``ORTModule`` do.

    Guards are those that ``torch.compile`` is configured to make: by default it does not notice
    hooks that are added later.
    """
    known = options or {}
    if unknown := {*known} - {"verify", "providers", "disabled_passes"}:
        raise ValueError(
            'the backend "steep" has the options "verify", "providers" and "disabled_passes", '
            f"not {sorted(unknown)}"
        )
    verify, providers = known.get("verify"), known.get("providers")
    disabled = known.get("disabled_passes", ())
    if providers is None and not disabled:
        return _defaults[verify](graph_module, examples)
    check_passes(disabled)
    chosen = DynamoBackend(
        autocast_precision,
        verify=verify,
        providers=choices_of(providers),
        disabled_passes=disabled,
    )
    return chosen(graph_module, examples)


_defaults = {
    verify: DynamoBackend(autocast_precision, verify=verify) for verify in (None, False, True)
}

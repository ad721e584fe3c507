"""The backend ``"steep"`` of ``torch.compile``.

Dynamo follows a module's Python code and ends a graph where the code branches on tensor values. It
guards each graph on what it read: extents, attributes, globals, hooks, modes, and which arguments
are the same tensor. graph/compiled_graph.py compiles a graph for the engine. PyTorch runs the code
between graphs, and graphs that cannot be lowered.

This uses private interfaces of PyTorch: patching/torch_versions.py lists the releases that were
tested.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from steep._steep import check_passes
from steep.dynamo.dynamo_backend import DynamoBackend
from steep.lowering.capture_context import autocast_precision
from steep.providers import choices_of

log = logging.getLogger("steep")


def backend(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Run a graph of ``torch.compile(module, backend="steep")``; fall back to PyTorch if needed.

    The options are those of ``ORTModule``:

    - ``{"verify": True}`` compares the first step of each graph with PyTorch's.
    - ``{"providers": [...]}`` says where graphs run.
    - ``{"disabled_passes": [...]}`` names rewrites to leave out.

    Another option raises ValueError.

    ``torch.compile``'s configuration decides which guards there are: by default Dynamo does not
    notice hooks that are added later. A backend gets a graph when Dynamo has traced it, so it
    cannot add the guards of ``ORTModule``; one warning in a process says so.
    """
    _say_whose_guards()
    settings = options or {}
    if unknown := {*settings} - {"verify", "providers", "disabled_passes"}:
        raise ValueError(
            'the backend "steep" has the options "verify", "providers" and "disabled_passes", '
            f"not {sorted(unknown)}"
        )
    verify, providers = settings.get("verify"), settings.get("providers")
    disabled_passes = settings.get("disabled_passes", ())
    if providers is None and not disabled_passes:
        return _defaults[verify](graph_module, examples)
    check_passes(disabled_passes)
    compiler = DynamoBackend(
        autocast_precision,
        verify=verify,
        providers=choices_of(providers),
        disabled_passes=disabled_passes,
    )
    return compiler(graph_module, examples)


@functools.cache
def _say_whose_guards() -> None:
    log.warning(
        'torch.compile(backend="steep") runs a graph again whenever PyTorch\'s own guards hold; '
        "changes that only ORTModule(model) notices are listed in docs/wrappers.md, under "
        "torch.compile"
    )


_defaults = {
    verify: DynamoBackend(autocast_precision, verify=verify) for verify in (None, False, True)
}

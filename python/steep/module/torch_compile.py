"""The entry point of ``torch.compile(module, backend="steep")``, for any release of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from steep.dynamo import forks  # noqa: F401  starts autograd before a capture
from steep.patching.torch_versions import is_tested, load

if TYPE_CHECKING:
    import torch


def backend(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Run a graph of ``torch.compile``: see ``steep.dynamo.backend.backend``.

    With a release of PyTorch that the tests have not run with, ``public_capture`` runs the graph.
    """
    name = "steep.dynamo.backend" if is_tested() else "steep.public_capture.compile_backend"
    run: Callable[..., Any] = load(name).backend(graph_module, examples, options=options)
    return run

"""``torch.compile(module, backend="steep")`` with a PyTorch that the tests have not run with."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import (  # type: ignore[import-untyped]
    aot_module_simplified,
    make_boxed_func,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from steep._steep import check_passes
from steep.dynamo.forks import refuse_to_capture
from steep.patching.torch_versions import window
from steep.providers import Providers, choices_of
from steep.public_capture.compared_graph import ComparedGraph
from steep.public_capture.functional_graph import CaptureState, FunctionalGraph
from steep.verify.difference import should_verify

log = logging.getLogger("steep")

VERIFIED_STEPS = 3
"""Number of first steps of each graph that are compared with PyTorch's."""


@functools.cache
def warn_untested_release() -> None:
    """Warn, once in a process, that this release was not tested."""
    log.warning(
        "PyTorch %s is outside of the releases that Steep has been tested with (%s). Only its "
        'public interfaces are used: ORTModule and torch.compile(backend="steep") work, with a '
        "graph for each set of extents. PyTorch runs operators that draw random numbers and "
        "operators that ONNX does not have, such as the backward of convolutions. There are no "
        "second derivatives, no precision=, no fallback=None, no plan(), dump() or profile(), and "
        "no cache of graphs; trainers refuse. The first %d steps of each graph are compared with "
        "PyTorch's, unless verify=False.",
        torch.__version__,
        window(),
        VERIFIED_STEPS,
    )


def capture_state(
    verify: bool | None, providers: Providers | None, disabled_passes: Sequence[str]
) -> CaptureState:
    """Return the state of a module's graphs. Raises ModelError, ProviderError, TypeError."""
    check_passes(disabled_passes)
    steps = VERIFIED_STEPS if should_verify(verify, unasked=True) else 0
    return CaptureState(steps, choices_of(providers), tuple(disabled_passes))


def compiled(
    graph_module: torch.fx.GraphModule, examples: Sequence[Any], state: CaptureState
) -> Callable[..., Any]:
    """Return a function that runs a graph of ``torch.compile``.

    Forward and backward are one graph each.
    """

    refuse_to_capture()
    dtypes: set[torch.dtype] = set()

    def make(functional: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        values = (node.meta.get("val") for node in functional.graph.nodes)
        dtypes.update(v.dtype for v in values if isinstance(v, torch.Tensor))
        boxed: Callable[..., Any] = make_boxed_func(FunctionalGraph(functional, state))
        return boxed

    # PyTorch's decomposition of fused attention passes weights to a backward that expects
    # logsumexp: its gradients are wrong. The math backend (products and a softmax) is correct.
    decompositions = torch.export.default_decompositions()
    for fused_operator in [op for op in decompositions if "scaled_dot_product" in str(op)]:
        del decompositions[fused_operator]
    with sdpa_kernel(SDPBackend.MATH):
        run: Callable[..., Any] = aot_module_simplified(
            graph_module,
            examples,
            fw_compiler=make,
            decompositions=decompositions,
        )
    devices = {e.device.type for e in examples if isinstance(e, torch.Tensor)}
    if not state.steps or (devices and "cpu" not in devices):  # on other devices PyTorch runs all
        return run
    return ComparedGraph(graph_module, run, state.steps, dtypes)


def backend(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Run a graph of ``torch.compile(module, backend="steep", dynamic=False)``.

    The options are those of ``steep.dynamo.backend.backend``; ``verify`` is True by default.
    """
    warn_untested_release()
    settings = options or {}
    if unknown := {*settings} - {"verify", "providers", "disabled_passes"}:
        raise ValueError(
            'the backend "steep" has the options "verify", "providers" and "disabled_passes", '
            f"not {sorted(unknown)}"
        )
    state = capture_state(
        settings.get("verify"), settings.get("providers"), settings.get("disabled_passes", ())
    )
    return compiled(graph_module, examples, state)

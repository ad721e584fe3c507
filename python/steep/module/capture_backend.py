"""Makes captured modules for ``ORTModule``, and checks its calls: exporters, modes, transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from steep.dynamo import forks
from steep.dynamo.report import GraphReport
from steep.errors import ModelError
from steep.lowering.capture_context import autocast_precision
from steep.patching.torch_versions import load
from steep.providers import Providers, choices_of
from steep.torch_internals.dispatch import FakeTensor, dispatch_mode_stack
from steep.torch_internals.functorch import are_transforms_active
from steep.torch_internals.nn import has_any_global_hook
from steep.torch_internals.pytree import tree_leaves

if TYPE_CHECKING:
    from steep.dynamo.captured_module import CapturedModule

__all__ = ["has_any_global_hook", "make_captured_module", "only_observed", "refuse_transforms"]


def make_captured_module(
    module: torch.nn.Module,
    precision: str | None,
    record: Callable[[GraphReport], None],
    *,
    whole: bool,
    verify: bool | None,
    providers: Providers | None,
    disabled_passes: Sequence[str],
    memory_limit: str,
) -> CapturedModule:
    """Return a module whose calls Dynamo captures.

    Args:
        precision: "fp32", "bf16" or "fp16"; None: the precision that autocast has at each capture.
        module, record, whole, verify, providers, disabled_passes, memory_limit: as for
            ``steep.dynamo.captured_module.CapturedModule``.
    """
    with forks.loading:
        captured_module = load("steep.dynamo.captured_module")  # and a large part of PyTorch

    captured: CapturedModule = captured_module.CapturedModule(
        module,
        lambda: precision or autocast_precision(),
        record,
        whole=whole,
        verify=verify,
        providers=choices_of(providers),
        disabled_passes=disabled_passes,
        memory_limit=memory_limit,
    )
    return captured


def refuse_transforms() -> None:
    """Raise ModelError inside a dispatch mode or transform that must see PyTorch's operators."""
    if any(not mode.is_infra_mode() for mode in dispatch_mode_stack()):
        raise ModelError(
            "An ORTModule is called within a TorchDispatchMode, such as FlopCounterMode.",
            expected="no active TorchDispatchMode: it would not see the operators of the engine",
            remedy='call the wrapped module, model.module; or fallback="torch"',
        )
    if are_transforms_active():
        raise ModelError(
            "An ORTModule is called within a transform of torch.func (grad, vmap, jvp, …).",
            expected="the transform within the module, where the engine runs it as well",
            remedy="wrap a module whose forward has the transform; or leave this one to PyTorch: "
            'functional_call(model.module, …), or fallback="torch"',
        )


def only_observed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an exporter or shape propagation traces this call, which computes nothing.

    Such a tracer needs the operators of the wrapped module.
    """
    # Not torch.compiler.is_exporting(): while one thread exports it is true in all threads.
    return torch.jit.is_tracing() or any(
        isinstance(t, FakeTensor) for t in tree_leaves((args, kwargs))
    )

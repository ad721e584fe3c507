"""Checks of parameters that a compiled step updates in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from steep.errors import ModelError
from steep.lowering.aliasing import overlapping
from steep.torch_internals.tensors import has_hooks


def check_apart(net: torch.nn.Module, trained: set[str], tensors: Sequence[torch.Tensor]) -> None:
    """Check that a step writes to no memory that other tensors read.

    A step updates each parameter as soon as its gradient exists. A parameter that is not contiguous
    gets new memory, so that a tensor that shared its memory would no longer change with it.

    Args:
        net: model and criterion.
        trained: names of its trained parameters.
        tensors: all tensors that the step's graph reads, the parameters too.

    Raises:
        ModelError: a parameter shares memory with another tensor.
    """
    own = {id(p): name for name, p in net.named_parameters() if name in trained}
    for pair in overlapping({id(t): t for t in tensors}.items()):
        for key in pair:
            if key in own:
                _refuse(own[key])
    moving = {
        t.untyped_storage().data_ptr(): t for t in tensors if id(t) in own and not t.is_contiguous()
    }
    if moving:
        for t in (*net.buffers(), *net.parameters()):
            parameter = moving.get(t.untyped_storage().data_ptr())
            if parameter is not None and t is not parameter:
                _refuse(own[id(parameter)])


def _refuse(name: str) -> None:
    raise ModelError(
        "A parameter that is trained shares its memory with another tensor.",
        node=name,
        remedy="tie them as one parameter, b.weight = a.weight, or use ORTModule",
    )


def check_gradients(reach: Iterable[str], trained: Iterable[str]) -> None:
    """Check that every parameter with a gradient in PyTorch has one in the engine.

    A parameter whose gradient is always zero (as after ``round``) has none in the engine; in
    PyTorch it still decays and counts steps.

    Args:
        reach: parameters that PyTorch's autograd reaches from the loss.
        trained: parameters that have a gradient in the engine.

    Raises:
        ModelError: a parameter has none.
    """
    for name in sorted(set(reach).difference(trained)):
        raise ModelError(
            "The gradient of a parameter is always zero.",
            node=name,
            remedy="freeze it by requires_grad_(False), or use ORTModule",
        )


def check_hooks(parameters: Iterable[torch.Tensor]) -> None:
    """Check that no parameter has a hook, since a compiled step does not expose gradients.

    Raises:
        ModelError: a parameter has a hook, of ``register_hook`` or
            ``register_post_accumulate_grad_hook``.
    """
    for p in parameters:
        if has_hooks(p):
            raise ModelError(
                "A parameter has a hook on its gradient, which would not be called.",
                received=f"a parameter of shape {list(p.shape)}",
                remedy="remove the hook, or use ORTModule, which calls it",
            )

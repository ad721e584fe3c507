"""Checks of parameters that a compiled step updates in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from steep.errors import ModelError
from steep.lowering.aliasing import overlapping
from steep.torch_internals.tensors import has_hooks


def check_apart(net: torch.nn.Module, trained: set[str], tensors: Sequence[torch.Tensor]) -> None:
    """Check that a step writes to no memory that other tensors read.

    A step updates each parameter as soon as its gradient exists. One that is not contiguous is
    updated by way of a copy, and the memory of others within its own is not looked at.

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


def check_registered(
    net: torch.nn.Module, read: Iterable[torch.Tensor], parameters: Iterable[torch.Tensor]
) -> None:
    """Check that the optimizer's parameters that a step reads are those of modules.

    Args:
        net: model and criterion.
        read: all tensors that the step's graph reads.
        parameters: those of the optimizer.

    Raises:
        ModelError: one is not registered in the model or the criterion, which therefore has no name
            for it, and would stay as it is.
    """
    registered = {id(p) for p in net.parameters()}
    wanted = {id(p) for p in parameters if p.requires_grad} - registered
    for t in read:
        if id(t) in wanted:
            raise ModelError(
                "The optimizer has a parameter that no module registers.",
                received=f"a parameter of shape {list(t.shape)}, which the model or the criterion "
                "reads",
                remedy="make it an attribute of the model, or pass a criterion that is a "
                "torch.nn.Module with it; or use ORTModule",
            )


_OF_AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_autocast(precision: str) -> None:
    """Check that PyTorch's autocast asks for nothing else than the trainer's precision.

    Raises:
        ModelError: it does; the step would not follow it.
    """
    if not torch.is_autocast_enabled("cpu"):
        return
    dtype = torch.get_autocast_dtype("cpu")
    if _OF_AUTOCAST.get(precision) != dtype:
        raise ModelError(
            "A trainer is called within torch.autocast, which its step does not follow.",
            expected=f"no autocast: the trainer's precision is {precision}",
            received=f"autocast to {dtype}",
            remedy='precision="bf16" or "fp16" of the trainer; or use ORTModule',
        )

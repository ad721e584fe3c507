"""``torch.utils.checkpoint.checkpoint(..., use_reentrant=True)``, which Dynamo treats as False."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import torch

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    CheckpointHigherOrderVariable,
    InstructionTranslatorBase,
    UserFunctionVariable,
    VariableTracker,
    unimplemented,
)
from steep.torch_internals.pytree import tree_map_only

CALL_CHECKPOINT = Substitution(
    CheckpointHigherOrderVariable,
    "call_function",
    "Weights in a reentrant checkpoint whose inputs need no gradient would get one.",
)

_call = CheckpointHigherOrderVariable.call_function
_OPTIONS = {"use_reentrant", "preserve_rng_state", "determinism_check", "early_stop"}


@replaces(CALL_CHECKPOINT)
def reentrant_checkpoints() -> Iterator[None]:
    """Give no gradient where a reentrant checkpoint gives none, with PyTorch's warning.

    Such a checkpoint is a node of autograd, whose inputs are the tensors among the arguments. If
    none of them requires a gradient, autograd records nothing. Its results are the tensor, or the
    tensors of the tuple, that the function returns: those in lists, dicts and inner tuples have
    no gradient.
    """
    with substitute({CALL_CHECKPOINT: _checkpoint}):
        yield


def _checkpoint(
    self: VariableTracker,
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    reentrant = kwargs.get("use_reentrant")
    if reentrant is not None and reentrant.as_python_constant() is False:
        return _call(self, tx, args, kwargs)
    if {*kwargs} - _OPTIONS:
        unimplemented(
            gb_type="an option of a reentrant checkpoint",
            context=", ".join(sorted({*kwargs} - _OPTIONS)),
            explanation="PyTorch refuses it",
            hints=[],
        )
    if any(_requires_grad(a.realize()) for a in args[1:]):
        result = _call(self, tx, args, kwargs)
        return UserFunctionVariable(_without_inner).call_function(tx, [result], {})
    return UserFunctionVariable(_unrecorded).call_function(tx, list(args), {})


def _requires_grad(variable: VariableTracker) -> bool:
    if not variable.is_tensor():
        return False
    example: torch.Tensor = variable.as_proxy().node.meta["example_value"]
    needs: bool = example.requires_grad
    return needs


def _unrecorded(function: Callable[..., object], *args: object) -> object:
    warnings.warn(  # the text of torch.utils.checkpoint
        "None of the inputs have requires_grad=True. Gradients will be None", stacklevel=2
    )
    with torch.no_grad():  # which the function may leave
        return _detached(function(*args))


def _without_inner(result: object) -> object:
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, tuple):
        return tuple(r if isinstance(r, torch.Tensor) else _detached(r) for r in result)
    return _detached(result)


def _detached(result: object) -> object:
    return tree_map_only(torch.Tensor, torch.Tensor.detach, result)

"""Keeps the semantics of training, which ONNX exporters would lose.

Exporters assume inference. They drop ``detach`` and ``no_grad``, so that gradients would be wrong,
and options without an ONNX equivalent, such as label smoothing. Inside ``keep_semantics()`` a torch
function mode intercepts every PyTorch call of a module: a tensor without history becomes the result
of ``steep::stop_gradient``, an option that would get lost is rewritten as operators, and calls that
cannot be rewritten raise RuntimeError.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy
import torch
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from steep.lowering.aliasing import written_if_asked
from steep.lowering.function_rewrites import DETACH, REWRITES, raise_inexpressible
from steep.lowering.ops.autograd_function import replace_value
from steep.lowering.ops.grouped_product import WITH_BACKWARD
from steep.lowering.ops.stop_gradient import stop_gradient
from steep.patching.signals import DelayedSignals
from steep.patching.substitution import Substitution, substitute
from steep.torch_internals.autograd import (
    DisableTorchFunction,
    set_grad_enabled,
)
from steep.torch_internals.pytree import tree_leaves, tree_map_only
from steep.torch_internals.tensors import is_view

MAKE_CONTEXT = Substitution(
    BackwardCFunction,
    "__init__",
    "Every call of a `torch.autograd.Function` makes one: its backward would get lost.",
)
APPLY_CHECKPOINT = Substitution(
    CheckpointFunction,
    "apply",
    "A checkpointed function is part of the graph; the planner decides what is computed again.",
)


@contextlib.contextmanager
def keep_semantics() -> Iterator[Watch]:
    """Trace a module such that the trace contains all that it computes, gradients included.

    Affects this thread only: the replacements check the thread.
    """
    watch, thread = Watch(), threading.get_ident()

    def refuse_function(context: BackwardCFunction) -> None:
        name = type(context).__name__.removesuffix("Backward")
        if threading.get_ident() == thread and not name.startswith(_DERIVATIVES):
            raise_inexpressible(f"the backward of {name}, a torch.autograd.Function,")

    def run_checkpointed(run: Callable[..., object], preserve: bool, *args: object) -> object:
        """Run a checkpointed region as plain operations: the engine plans recomputation itself."""
        if threading.get_ident() != thread:
            return _checkpoint(run, preserve, *args)
        return run(*args)

    with (
        DelayedSignals() as signals,
        # Every apply() makes a context, however the module obtained the function.
        substitute(
            {
                MAKE_CONTEXT: refuse_function,
                APPLY_CHECKPOINT: run_checkpointed,
            }
        ),
        watch,
        signals.tracing(),
    ):
        states = _generators()
        yield watch
        if _generators() != states:
            raise_inexpressible("a random number that Python or NumPy draws")


def _generators() -> str:
    """Return the state of Python's and NumPy's generators, whose numbers a graph would repeat."""
    return repr((random.getstate(), numpy.random.get_state()))


class Watch(TorchFunctionMode):
    """Intercepts every call of PyTorch.

    ``of_histories``: whether an argument of the next call may have an autograd history. A caller
    that knows there is none sets it to False, because traced tensors do not tell.
    ``writes_into_history``: whether the tensor that the next call writes to has one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.of_histories, self.writes_into_history = True, False
        # Tensors that share memory with a tensor with a history in PyTorch, but are copies here. By
        # id(); the references keep ids from being used again.
        self.aliases: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func is set_grad_enabled:
            # torch.export would cut the graph here.
            with DisableTorchFunction():
                return func(*args)
        kwargs = kwargs or {}
        stops = self.of_histories and not torch.is_grad_enabled()
        targets = args[:1] if _works_in_place(func) else kwargs.get("out")
        if targets is None:
            targets = written_if_asked(func, args, kwargs)
        self._check_target(targets)
        if targets is not None and stops:
            if self.writes_into_history:
                return _write_unseen(func, args, kwargs, targets)
            args, kwargs = _stop_all_but((args, kwargs), targets)
        # the number would lose the gradient
        if func in _TO_PYTHON and args[0].dtype.is_floating_point:
            raise_inexpressible("a Python number taken from a tensor")
        result = REWRITES.get(func, func)(*args, **kwargs)
        if func in DETACH:
            if result.dtype.is_floating_point:
                self.aliases[id(result)] = result
            return result
        arguments = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        if arguments & self.aliases.keys():
            for leaf in tree_leaves(result):  # a view of an alias is an alias
                if isinstance(leaf, torch.Tensor) and id(leaf) not in arguments and is_view(leaf):
                    self.aliases[id(leaf)] = leaf
        if not stops:
            return result

        def stop(t: torch.Tensor) -> torch.Tensor:
            if id(t) in arguments:  # an argument, not a new tensor
                return t
            copy = stop_gradient(t)
            if is_view(t):
                self.aliases[id(copy)] = copy
            return copy

        return tree_map_only(torch.Tensor, stop, result)

    def _check_target(self, targets: object) -> None:
        for target in tree_leaves(targets):
            if isinstance(target, torch.nn.Parameter):
                raise_inexpressible("a change of a parameter in forward")
            if id(target) in self.aliases:
                raise_inexpressible("a change in place of a detached tensor")


def _write_unseen(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], targets: object
) -> object:
    """Run an in-place call under no_grad, such that its target keeps its autograd history."""
    float_targets = [t for t in tree_leaves(targets) if t.is_floating_point()]
    before = [t.clone() for t in float_targets]
    args, kwargs = _stop_all_but((args, kwargs), targets)
    result = REWRITES.get(func, func)(*args, **kwargs)
    for target, old in zip(float_targets, before, strict=True):
        target.copy_(replace_value(target, old))
    return result


T = TypeVar("T")


def _stop_all_but(arguments: T, targets: object) -> T:
    """Return arguments without gradients, except for the targets of the write."""
    kept_ids = {id(t) for t in tree_leaves(targets)}
    result: T = tree_map_only(
        torch.Tensor, lambda t: t if id(t) in kept_ids else stop_gradient(t), arguments
    )
    return result


def _works_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "").partition(".")[0]  # an overload's name is "mul_.Tensor"
    if name.endswith("__"):
        return name == "__setitem__" or name in _IN_PLACE
    return name.endswith("_") and name != "requires_grad_"  # writes no values


_checkpoint = CheckpointFunction.apply
# names of the classes that torch.library makes of an operator's backward
_DERIVATIVES = (
    "GeneratedBackwardFor_steep_",
    *(f"GeneratedBackwardFor_{n.replace('::', '_')}_default" for n in WITH_BACKWARD),
)

_TO_PYTHON = {
    *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__),
    *(torch.Tensor.__index__, torch.Tensor.__array__, torch.Tensor.__contains__),
    *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy),
}


_IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod")}

"""Tensors that cannot become NumPy arrays: PyTorch raises an error, but Dynamo traces them.

Dynamo traces ``Tensor.numpy`` as a view, and NumPy functions of any tensor. For a tensor that
requires gradients, or is bfloat16, both are errors. Here the graph breaks, and PyTorch's own call
raises the error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from steep.patching.dynamo_settings import REFUSED_ARRAYS, values_of
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    InstructionTranslatorBase,
    NumpyNdarrayVariable,
    NumpyVariable,
    TensorVariable,
    VariableTracker,
    config,
)

CALL_METHOD = Substitution(
    TensorVariable,
    "call_method",
    "`Tensor.numpy` of a tensor that NumPy does not take is left to PyTorch, which raises.",
    order=4,
)
CALL_NUMPY = Substitution(
    NumpyVariable,
    "call_function",
    "A function of NumPy that is given a tensor which NumPy does not take is left to PyTorch.",
    order=4,
)


@replaces(CALL_METHOD, CALL_NUMPY)
def arrays() -> Iterator[None]:
    """Break the graph before a tensor that PyTorch may refuse to convert becomes an array."""
    with substitute(
        {
            CALL_METHOD: _left_to_pytorch(TensorVariable.call_method),
            CALL_NUMPY: _calling(NumpyVariable.call_function),
        }
    ):
        yield


def _left_to_pytorch(method: Callable[..., VariableTracker]) -> Callable[..., VariableTracker]:
    """Return a ``call_method`` that breaks the graph at ``numpy``, and else calls ``method``."""

    def call_method(
        self: VariableTracker,
        tx: InstructionTranslatorBase,
        name: str,
        args: Sequence[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if name != "numpy":
            return method(self, tx, name, args, kwargs)
        force = kwargs.get("force", False)
        forced = force if isinstance(force, bool) else bool(force.as_python_constant())
        with _graph_break_if(_is_refused(self, forced)):
            return method(self, tx, name, args, kwargs)

    return call_method


def _calling(call: Callable[..., VariableTracker]) -> Callable[..., VariableTracker]:
    """Return a ``call_function`` that breaks the graph at refused tensors, else calls ``call``."""

    def call_function(
        self: VariableTracker,
        tx: InstructionTranslatorBase,
        args: Sequence[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        with _graph_break_if(any(_is_refused(a) for a in (*args, *kwargs.values()))):
            return call(self, tx, args, kwargs)

    return call_function


def _is_refused(variable: VariableTracker, forced: bool = False) -> bool:
    if not isinstance(variable, TensorVariable) or isinstance(variable, NumpyNdarrayVariable):
        return False
    return variable.dtype == torch.bfloat16 or (bool(variable.requires_grad) and not forced)


def _graph_break_if(breaks: bool) -> contextlib.AbstractContextManager[None]:
    return config.patch(**values_of(REFUSED_ARRAYS)) if breaks else contextlib.nullcontext()

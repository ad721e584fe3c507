"""Guards on settings of the process that forward reads by a call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    InstructionTranslatorBase,
    PolyfilledFunctionVariable,
    VariableTracker,
    guard_that,
    unimplemented,
)

CALL_POLYFILLED = Substitution(
    PolyfilledFunctionVariable,
    "call_function",
    "Dynamo has no guard on the settings of the interpreter that it reads, and would change one "
    "at the capture alone.",
)

_call = PolyfilledFunctionVariable.call_function
_READ: tuple[Callable[..., object], ...] = (sys.getrecursionlimit, sys.get_int_max_str_digits)
_WRITTEN: tuple[Callable[..., object], ...] = (sys.set_int_max_str_digits,)


@replaces(CALL_POLYFILLED)
def process_state() -> Iterator[None]:
    """Guard on the interpreter's settings that forward reads; PyTorch runs what sets them.

    Dynamo itself guards on PyTorch's settings, or breaks the graph where they are read.
    """
    with substitute({CALL_POLYFILLED: _guarded}):
        yield


def _guarded(
    self: PolyfilledFunctionVariable,
    tx: InstructionTranslatorBase,
    *arguments: object,
) -> VariableTracker:
    if self.fn in _READ:
        value = self.fn()
        guard_that(f"__load_module('sys').{self.fn.__name__}() == {value}")
        return VariableTracker.build(tx, value)
    if self.fn in _WRITTEN:
        unimplemented(
            gb_type="a setting of the interpreter",
            context=self.fn.__name__,
            explanation="it has to be set at each call",
            hints=[],
        )
    return _call(self, tx, *arguments)

"""Guards that tell apart numbers that ``==`` does not: 0.0 and -0.0; 1, True and 1.0."""

from __future__ import annotations

import collections.abc
import contextlib
import functools
from collections.abc import Collection, Iterator

import numpy as np

from steep.dynamo.patches.extra_guards import guard_which_are_one
from steep.patching.dynamo_settings import ZERO, values_of
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    Guard,
    GuardBuilder,
    VariableTracker,
    builder,
    config,
    guard_that,
    unimplemented,
)

EQUALS = Substitution(
    GuardBuilder,
    "EQUALS_MATCH",
    "Dynamo compares constants by `==`: to it 0.0 is -0.0, and within a tuple 1 is True and 1.0.",
)
DICT_KEYS = Substitution(
    GuardBuilder,
    "DICT_KEYS_MATCH",
    "The same for the keys of a dict.",
)
FLOAT = Substitution(
    builder.VariableBuilder,
    "wrap_symfloat",
    "A float that changes is a symbol, and a symbol of value 0 has no sign.",
)
OF_NUMPY = Substitution(
    builder.VariableBuilder,
    "wrap_numpy_ndarray",
    "The same for NumPy's numbers, which Dynamo takes for arrays; and Dynamo has no guard that two "
    "arrays are distinct.",
)

_NUMBERS = (bool, int, float, complex)
_ORDERED = (tuple, list)
_UNORDERED = (set, frozenset, collections.abc.KeysView)

_equals = GuardBuilder.EQUALS_MATCH
_keys = GuardBuilder.DICT_KEYS_MATCH
_float = builder.VariableBuilder.wrap_symfloat
_of_numpy = builder.VariableBuilder.wrap_numpy_ndarray


@replaces(EQUALS, DICT_KEYS, FLOAT, OF_NUMPY)
def exact_numbers() -> Iterator[None]:
    """Guard on the sign of a zero, and on the types of numbers within containers.

    Dynamo itself guards on the type of a number that is in no container.
    """
    with substitute(
        {
            EQUALS: _equals_exactly,
            DICT_KEYS: _has_exact_keys,
            FLOAT: _wrap_float,
            OF_NUMPY: _wrap_number,
        }
    ):
        yield


def spelled(value: object) -> object:
    """Return the numbers of a constant, or of its elements, as Python writes them."""
    if isinstance(value, _ORDERED):
        return [spelled(v) for v in value]
    if isinstance(value, _UNORDERED):
        return sorted(str(spelled(v)) for v in value)
    if isinstance(value, slice):
        return [spelled(v) for v in (value.start, value.stop, value.step)]
    return repr(value) if isinstance(value, _NUMBERS) else ""


def _has_numbers(value: object) -> bool:
    if isinstance(value, slice):
        return any(isinstance(v, _NUMBERS) for v in (value.start, value.stop, value.step))
    if isinstance(value, (*_ORDERED, *_UNORDERED)):
        return any(isinstance(v, _NUMBERS) or _has_numbers(v) for v in value)
    # a complex number has two zeros, and one part may be NaN
    return isinstance(value, complex) or (isinstance(value, float) and value == 0)


@functools.wraps(_equals)
def _equals_exactly(of: GuardBuilder, guard: Guard, *hint: str, **named_hint: str) -> None:
    _equals(of, guard, *hint, **named_hint)
    _guard_spelling(of, of.get(guard), guard.name)


@functools.wraps(_keys)
def _has_exact_keys(of: GuardBuilder, guard: Guard) -> None:
    _keys(of, guard)
    keys: Collection[object] = dict.keys(of.get(guard))
    _guard_spelling(of, keys, f"dict.keys({guard.name})")


def _wrap_float(self: builder.VariableBuilder, value: float) -> VariableTracker:
    # a zero becomes a constant, with a guard
    constant = config.patch(**values_of(ZERO)) if value == 0 else contextlib.nullcontext()
    with constant:
        wrapped: VariableTracker = _float(self, value)
    return wrapped


def _wrap_number(self: builder.VariableBuilder, value: np.ndarray) -> VariableTracker:
    if value.ndim == 0 and value.dtype.kind == "f":
        if is_negative_zero(value):
            unimplemented(
                gb_type="the number -0.0 of NumPy",
                context="",
                explanation="PyTorch's tracer would take it for 0.0",
                hints=[],
            )
        guard_that(f"not __load_module({__name__!r}).is_negative_zero({self.source.name})")
    elif value.ndim:
        _guard_apart(self)
    wrapped: VariableTracker = _of_numpy(self, value)
    return wrapped


def _guard_apart(array: builder.VariableBuilder) -> None:
    """Guard on which of the graph's arrays are one."""
    first = vars(array.tx.output).setdefault("steep_array", array.source)
    guard_which_are_one(first, array.source)


def is_negative_zero(value: np.generic | np.ndarray) -> bool:
    """Return whether a number of NumPy is -0.0."""
    return bool(value == 0 and np.signbit(value))


def _guard_spelling(of: GuardBuilder, value: object, name: str) -> None:
    if not _has_numbers(value):
        return
    if isinstance(value, _ORDERED) and {*map(type, value)} == {int}:
        holds = f"{{*map(type, {name})}} == {{int}}"  # takes a third of the time
    else:
        holds = f"__load_module({__name__!r}).spelled({name}) == {spelled(value)!r}"
    of.object_aliasing_guard_codes.append((holds, f"{holds}  # 0.0 is not -0.0; 1 is not True"))

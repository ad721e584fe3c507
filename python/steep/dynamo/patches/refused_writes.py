"""Attributes that an object refuses to write or to delete: Dynamo takes them for written.

Code that asks for forgiveness (``try: del m.cache`` and ``except AttributeError``) would go on as
if the attribute had been there.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    ConstDictVariable,
    DeletedVariable,
    InstructionTranslator,
    SideEffects,
    UserDefinedObjectVariable,
    VariableTracker,
    guard_that,
    raise_observed_exception,
    unimplemented,
)

STORE = Substitution(
    SideEffects,
    "store_attr",
    "An attribute that is absent could be deleted, from a module or a slot, without the "
    "AttributeError of eager mode; and what a type in C refuses to write would count as written.",
)


@replaces(STORE)
def refused_writes() -> Iterator[None]:
    """Raise AttributeError where forward deletes what is absent; break graphs at types in C.

    A graph that deletes an attribute holds while the attribute is there, or is absent, as it was.
    """
    with substitute({STORE: _store}):
        yield


_store_attr = SideEffects.store_attr


def has_own(holder: object, name: str) -> bool:
    """Return whether an object itself has an attribute, in its dict or a slot (for guards)."""
    descriptor = inspect.getattr_static(type(holder), name, None)
    if not isinstance(descriptor, types.MemberDescriptorType):
        return name in getattr(holder, "__dict__", ())
    try:
        descriptor.__get__(holder)
    except AttributeError:
        return False
    return True


def _store(
    self: SideEffects, item: VariableTracker, name: str, value: VariableTracker, *options: object
) -> None:
    if isinstance(item, UserDefinedObjectVariable):
        descriptor = inspect.getattr_static(type(item.value), name, None)
        if isinstance(descriptor, types.GetSetDescriptorType):
            _refuse_unless_known(item, name, value)
        elif isinstance(value, DeletedVariable) and not _is_written(self, item, "__dict__"):
            was_there = _was_there(item, name)
            if not (_is_written(self, item, name) or was_there) or _is_deleted(self, item, name):
                _raise_absent(item, name)
            if not was_there:  # but written since: that write is taken back
                del self.store_attr_mutations[item][name], self.attr_mutation_kinds[item][name]
                return
    _store_attr(self, item, name, value, *options)


def _is_written(effects: SideEffects, item: VariableTracker, name: str) -> bool:
    return name in effects.store_attr_mutations.get(item, ())


def _is_deleted(effects: SideEffects, item: VariableTracker, name: str) -> bool:
    return isinstance(effects.store_attr_mutations.get(item, {}).get(name), DeletedVariable)


def _was_there(item: UserDefinedObjectVariable, name: str) -> bool:
    """Return whether an object had an attribute before the call; the graph holds for that alone."""
    there = has_own(item.value, name)
    if item.source is not None:
        call = f"__load_module({__name__!r}).has_own({item.source.name}, {name!r})"
        guard_that(call if there else f"not {call}", "which forward deletes")
    return there


def _raise_absent(item: UserDefinedObjectVariable, name: str) -> None:
    message = f"'{type(item.value).__name__}' object has no attribute '{name}'"
    raise_observed_exception(AttributeError, InstructionTranslator.current_tx(), args=[message])


def _refuse_unless_known(
    item: UserDefinedObjectVariable, name: str, value: VariableTracker
) -> None:
    """Break the graph before a write that a type in C may refuse, such as to ``__weakref__``."""
    is_dict = name == "__dict__" and isinstance(value, ConstDictVariable)
    if not is_dict and not isinstance(item.value, BaseException):
        unimplemented(
            gb_type="a write to an attribute of a type in C",
            context=f"{item}.{name}",
            explanation="the type may refuse it",
            hints=[],
        )

"""Guards on the methods of classes whose objects forward makes or uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter, is_
from typing import Any

from steep.patching.substitution import Substitution, replaces, substitute
from steep.patching.torch_versions import TENSOR_GETATTR
from steep.torch_internals.dynamo import (
    InstructionTranslator,
    InstructionTranslatorBase,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    VariableTracker,
    guard_that,
    object_protocol,
    variables,
)

OBJECT = Substitution(
    UserDefinedObjectVariable,
    "__init__",
    "Dynamo has no guard on the methods of an object that forward makes, nor on the class methods "
    "and special methods of others.",
)
CLASS = Substitution(
    UserDefinedClassVariable,
    TENSOR_GETATTR,
    "Dynamo has no guard that a class gets no static method in place of one that it inherits.",
)
SLOTS = Substitution(
    object_protocol,
    "_get_cached_slots",
    "Dynamo keeps which special methods a class has, though a class may get others.",
    absent=True,
    like="vt_identity_compare",
)
SLOT_TABLE = Substitution(
    variables.base,
    "_tp_type",
    "Dynamo keeps the table of a class's special methods.",
    since=(2, 14),
)
SLOT_NAMES = Substitution(
    variables.base,
    "_compute_slotdefs",
    "Dynamo keeps the names of a class's special methods.",
    since=(2, 14),
)

_init = UserDefinedObjectVariable.__init__
_attribute = getattr(UserDefinedClassVariable, TENSOR_GETATTR)

_CAN_CHANGE = 1 << 9  # a flag of Python: a class that a `class` statement made


def _asked_anew(cache: Substitution) -> Callable[[type], Any]:
    """Return the function behind a cache, for classes that can change."""
    cached = getattr(cache.owner, cache.name, type)
    function = inspect.unwrap(cached)

    def ask(kind: type) -> object:
        return (function if kind.__flags__ & _CAN_CHANGE else cached)(kind)

    return ask


_slots = {cache: _asked_anew(cache) for cache in (SLOTS, SLOT_TABLE, SLOT_NAMES)}


@replaces(OBJECT, CLASS, *_slots)
def class_guards() -> Iterator[None]:
    """Guard on the methods of classes, and of their bases, whose objects forward makes or uses.

    So it does for a class of which forward reads an attribute. PyTorch's own classes are left out,
    since Dynamo and Steep change some during a capture: of these, ``extra_guards.py`` guards on the
    methods that forward looks up in objects that it did not make.
    """
    with substitute({OBJECT: _make_object, CLASS: _attribute_of, **_slots}):
        yield


def _make_object(
    self: UserDefinedObjectVariable, value: object, *args: object, **named: object
) -> None:
    _init(self, value, *args, **named)
    _guard_class(InstructionTranslator.current_tx(), type(value))


def _attribute_of(
    self: UserDefinedClassVariable, tx: InstructionTranslatorBase, name: str
) -> VariableTracker:
    _guard_class(tx, self.value)
    found: VariableTracker = _attribute(self, tx, name)
    return found


def _guard_class(tx: InstructionTranslatorBase, of: type) -> None:
    output = tx.output
    for kind in [*inspect.getmro(of), *inspect.getmro(type(of))]:
        if not kind.__flags__ & _CAN_CHANGE or is_of_pytorch(kind):
            continue
        known = len(output.installed_globals)
        name = output.install_global_by_id("steep_class", kind)
        if len(output.installed_globals) > known:
            methods = output.install_global("steep_methods", Methods(kind))
            guard_that(
                f"G[{methods!r}].are_in(G[{name!r}])", f"no method of {kind.__qualname__} changes"
            )


def is_of_pytorch(kind: type) -> bool:
    """Return whether a class is PyTorch's own."""
    return kind.__module__.partition(".")[0] == "torch"


class Methods:
    """The methods that a class has of its own, and the code that they run.

    Args:
        kind: the class as it is now; values of it that are no methods are left out.
    """

    def __init__(self, kind: type) -> None:
        entries = dict(vars(kind))
        self._names = frozenset(entries)
        self._order = kind.__mro__  # another tuple once bases change
        # `__getattr__` is asked for what the class does not have
        self._answers = any("__getattr__" in vars(k) and not is_of_pytorch(k) for k in kind.__mro__)
        methods = {name: entry for name, entry in entries.items() if _is_method(name, entry)}
        self._methods, self._entries = list(methods), list(methods.values())
        functions = [getattr(e, "__func__", getattr(e, "fget", e)) for e in self._entries]
        self._functions = [f for f in functions if getattr(f, "__code__", None) is not None]
        self._codes = list(map(_code_of, self._functions))

    def are_in(self, kind: type) -> bool:
        """Return whether the class has these methods and no others.

        Each call of a module asks for each class, so that loops are those of ``map``.
        """
        entries = vars(kind)
        return (
            kind.__mro__ is self._order
            and all(map(is_, map(entries.get, self._methods), self._entries))
            and all(map(is_, map(_code_of, self._functions), self._codes))
            and (entries.keys() == self._names or self._are_all_methods_of(entries))
        )

    def _are_all_methods_of(self, entries: Mapping[str, Any]) -> bool:
        new = entries.keys() - self._names
        return not self._answers and not any(_is_method(name, entries[name]) for name in new)


_code_of = attrgetter("__code__")


def _is_method(name: str, entry: object) -> bool:
    # `__hash__ = None` takes a method away
    return hasattr(type(entry), "__get__") or (entry is None and name.startswith("__"))

"""Guards on what forward finds absent, on leaves, and on variables of the standard library."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator

from steep.patching.substitution import Substitution, replaces, substitute
from steep.patching.torch_versions import TENSOR_GETATTR
from steep.torch_internals.dynamo import (
    ConstantVariable,
    ConstDictVariable,
    Guard,
    GuardBuilder,
    InliningInstructionTranslator,
    InstructionTranslatorBase,
    ObservedAttributeError,
    SideEffectsProxyDict,
    SkipGuardSource,
    Source,
    TensorVariable,
    UserDefinedObjectVariable,
    VariableTracker,
    install_guard,
)

ITEM = Substitution(
    ConstDictVariable,
    "getitem_const_raise_exception_if_absent",
    "Dynamo has no guard that a key is absent whose KeyError forward catches.",
)
ATTRIBUTE = Substitution(
    UserDefinedObjectVariable,
    TENSOR_GETATTR,
    "Dynamo has no guard that an attribute is absent whose AttributeError forward catches.",
)
NAME_IN_DICT = Substitution(
    SideEffectsProxyDict,
    "__contains__",
    "Dynamo has no guard that a name is absent from the `__dict__` of an object.",
)
IS_LEAF = Substitution(
    TensorVariable,
    "method_attr_is_leaf",
    "Dynamo has no guard on whether a tensor is a leaf.",
    absent=True,
    like="method_attr_requires_grad",
)
STANDARD_LIBRARY = Substitution(
    InliningInstructionTranslator,
    "get_globals_source_and_value",
    "Dynamo has no guard on what functions of the standard library read of their module's "
    "variables, such as `os.getenv` of the environment.",
)


@replaces(ITEM, ATTRIBUTE, NAME_IN_DICT, IS_LEAF, STANDARD_LIBRARY)
def absence_guards() -> Iterator[None]:
    """Add guards that what forward finds absent stays absent, and that leaves stay leaves.

    Variables that functions of the standard library read keep their values, too.

    Code that asks for forgiveness (``try: v = d[key]`` and ``except KeyError``) is as common as
    ``d.get(key)`` and ``hasattr``, for which Dynamo has guards.
    """
    with substitute(
        {
            ITEM: _item_of,
            ATTRIBUTE: _attribute_of,
            NAME_IN_DICT: _has_name,
            IS_LEAF: _is_leaf,
            STANDARD_LIBRARY: _global_of,
        }
    ):
        yield


_item = ConstDictVariable.getitem_const_raise_exception_if_absent
_attribute = getattr(UserDefinedObjectVariable, TENSOR_GETATTR)
_contains = SideEffectsProxyDict.__contains__
_global = InliningInstructionTranslator.get_globals_source_and_value
# what a module of the standard library defines; nobody assigns to these names
_DEFINED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)


def _item_of(
    self: ConstDictVariable, tx: InstructionTranslatorBase, key: VariableTracker
) -> VariableTracker:
    if key not in self:
        self.install_dict_contains_guard(tx, [key])
    return _item(self, tx, key)


def _attribute_of(
    self: UserDefinedObjectVariable, tx: InstructionTranslatorBase, name: str
) -> VariableTracker:
    try:
        return _attribute(self, tx, name)
    except ObservedAttributeError:
        written = tx.output.side_effects.has_pending_mutation_of_attr(self, name)
        nowhere = object()
        if (
            self.source is not None
            and not written
            and inspect.getattr_static(self.value, name, nowhere) is nowhere
        ):
            absent = functools.partial(GuardBuilder.HASATTR, attr=name)
            install_guard(self.source.make_guard(absent))
        raise


def _has_name(self: SideEffectsProxyDict, key: object) -> bool:
    there: bool = _contains(self, key)
    name, holder = getattr(key, "vt", key), self.item
    if isinstance(name, VariableTracker):
        name = name.as_python_constant()
    if (
        not there
        and isinstance(holder, UserDefinedObjectVariable)
        and holder.source is not None
        and not self.side_effects.has_pending_mutation_of_attr(holder, name)
    ):
        absent = functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)
        install_guard(holder.source.make_guard(absent))
    return there


def _global_of(
    self: InliningInstructionTranslator, name: str
) -> tuple[object, VariableTracker, Source]:
    value, variable, source = _global(self, name)
    if isinstance(source, SkipGuardSource) and not isinstance(self.f_globals[name], _DEFINED):
        source = source.base
    return value, variable, source


def _is_leaf(self: TensorVariable, tx: InstructionTranslatorBase) -> VariableTracker | None:
    if self.source is None:
        return None  # a tensor of the graph, about which Dynamo knows it
    install_guard(self.source.make_guard(_stays_leaf))
    return ConstantVariable.create(self.as_proxy().node.meta["example_value"].is_leaf)


def _stays_leaf(builder: GuardBuilder, guard: Guard) -> None:
    holds = f"{guard.name}.is_leaf == {builder.get(guard).is_leaf}"
    builder.object_aliasing_guard_codes.append((holds, holds))

"""Guards that Dynamo does not make, and side effects that it loses."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    AttributeMutationExisting,
    AttrSource,
    BaseListVariable,
    CellVariable,
    ConstantVariable,
    ConstDictVariable,
    GlobalSource,
    GlobalStateSource,
    Guard,
    GuardBuilder,
    InstructionTranslator,
    InstructionTranslatorBase,
    SideEffects,
    SideEffectsProxyDict,
    Source,
    TypeDictSource,
    UnspecializedNNModuleVariable,
    UserDefinedObjectVariable,
    UserFunctionVariable,
    ValueMutationExisting,
    VariableTracker,
    builder,
    builtin,
    guard_that,
    install_guard,
    object_protocol,
)

EFFECTS_OF_DICT = Substitution(
    SideEffectsProxyDict,
    "side_effects",
    "Attributes that forward writes after `torch.cond` or a tensor's hook would be lost.",
    until=(2, 15),
    absent=True,
)
KEYS_GUARD = Substitution(
    ConstDictVariable,
    "install_dict_keys_match_guard",
    "Dynamo has no guard on the order of an OrderedDict's keys.",
)
HAS_NEW_ITEMS = Substitution(
    ConstDictVariable,
    "has_new_items",
    "The order that forward gives the keys of an OrderedDict would be lost.",
)
CLASS_OF_LIST = Substitution(
    BaseListVariable,
    "cls_for_instance",
    "Dynamo ignores the `maxlen` of a deque.",
)
FIND_IN_CLASS = Substitution(
    UserDefinedObjectVariable,
    "get_source_by_walking_mro",
    "Dynamo has no guard on the methods of a class that it looked up, nor that the class of an "
    "object gets no attribute of its own in place of one that it inherits.",
)
CALL_MODULE = Substitution(
    UnspecializedNNModuleVariable,
    "call_function",
    "Dynamo has no guard on the hooks of all modules.",
)
DUPLICATE_GUARD = Substitution(
    builder,
    "make_dupe_guard",
    "Dynamo has no guard that an argument is the object of a global variable.",
)
SAVE_EFFECTS = Substitution(
    SideEffects,
    "codegen_save_tempvars",
    "Dynamo has no guard that two objects stay distinct when one of them is changed.",
)
SAME_IN_CODE = Substitution(
    builtin,
    "vt_identity_compare",
    "Dynamo has no guard that two objects stay distinct after `a is b`; and two names of one tuple "
    "are two tuples to it.",
)
SAME_IN_CONTAINERS = Substitution(
    object_protocol,
    "vt_identity_compare",
    "The same for `a == b` and `a in [b]` of objects without a comparison of their own.",
)
WRAP = Substitution(
    builder.VariableBuilder,
    "__call__",
    "Dynamo has no guard on which method of a type it got, such as `torch.Tensor.sin`.",
)
BIND_ARGUMENTS = Substitution(
    UserFunctionVariable,
    "bind_args",
    "What methods of an object made in forward do to variables of an enclosing function is lost.",
)

_HOOKS = tuple(
    f"_global_{kind}_hooks" for kind in ("forward_pre", "forward", "backward_pre", "backward")
)

_EXISTING = (AttributeMutationExisting, ValueMutationExisting)  # of earlier objects


@replaces(
    *(EFFECTS_OF_DICT, FIND_IN_CLASS, CALL_MODULE, DUPLICATE_GUARD),
    *(SAVE_EFFECTS, KEYS_GUARD, HAS_NEW_ITEMS, CLASS_OF_LIST, BIND_ARGUMENTS),
    *(SAME_IN_CODE, SAME_IN_CONTAINERS, WRAP),
)
def extra_guards() -> Iterator[None]:
    """Add guards on state that Dynamo reads without a guard.

    A graph is valid only while these stay the same:

    - the methods that Dynamo looked up in classes, ``forward`` among them, and which class they
      are inherited from;
    - the number of global module hooks;
    - whether an argument is the same object as a global variable (a list, a dict, a tensor);
    - that two objects of one type are distinct, if the graph changes one of them;
    - whether two objects that forward compares are one;
    - which method of a type a variable is, such as ``torch.Tensor.sin``;
    - the order of an OrderedDict's keys, if the graph reads all of them;
    - variables of an enclosing function, and defaults, that methods of an object made in forward
      read. What the methods write there is kept.

    Traced code also keeps the ``maxlen`` of a deque, the order in which forward writes keys, and
    the attributes that forward writes after ``torch.cond`` or a tensor's ``register_hook``.
    """
    with substitute(
        {
            EFFECTS_OF_DICT: _CurrentSideEffects(),
            FIND_IN_CLASS: _find_in_class,
            CALL_MODULE: _call_module,
            DUPLICATE_GUARD: _are_one,
            SAVE_EFFECTS: _write_apart,
            KEYS_GUARD: _match_keys,
            HAS_NEW_ITEMS: _is_changed,
            CLASS_OF_LIST: staticmethod(_class_for),
            BIND_ARGUMENTS: _bind_arguments,
            SAME_IN_CODE: _are_same,
            SAME_IN_CONTAINERS: _are_equal,
            WRAP: _wrap_method,
        }
    ):
        yield


class _CurrentSideEffects:
    """A descriptor: an object's ``__dict__`` proxy always uses the current side effects.

    A region with its own graph (``torch.cond``) replaces the side effects by a copy.
    """

    def __set__(self, holder: object, effects: SideEffects) -> None:
        vars(holder)["side_effects"] = effects

    def __get__(self, holder: object, owner: type) -> SideEffects:
        return vars(holder)["side_effects"].output_graph_weakref().side_effects


_find = UserDefinedObjectVariable.get_source_by_walking_mro
_call = UnspecializedNNModuleVariable.call_function
_guard_one = builder.make_dupe_guard
_write = SideEffects.codegen_save_tempvars
_match = ConstDictVariable.install_dict_keys_match_guard
_has_new = ConstDictVariable.has_new_items
_class = BaseListVariable.cls_for_instance
_bind = UserFunctionVariable.bind_args
_same = object_protocol.vt_identity_compare
_wrap = builder.VariableBuilder.__call__


def _find_in_class(
    self: VariableTracker, tx: InstructionTranslatorBase, name: str
) -> VariableTracker:
    source = _find(self, tx, name)
    _guard_own_class(self, tx, name)
    entry = next(vars(c)[name] for c in type(self.value).__mro__ if name in vars(c))
    # Steep's replacements exist only during a capture: a guard on them would fail later
    if isinstance(entry, types.FunctionType) and not str(entry.__module__).startswith("steep."):
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))
    return source


def _guard_own_class(self: VariableTracker, tx: InstructionTranslatorBase, name: str) -> None:
    """Guard that an object's own class does not get an attribute that it inherits.

    Dynamo has such guards on the classes between the two.
    """
    own, absent = type(self.value), tx.output.guarded_mro_absent_keys
    if name not in vars(own) and (id(own), name) not in absent:
        absent.add((id(own), name))
        not_there = functools.partial(GuardBuilder.DICT_NOT_CONTAINS, key=name)
        install_guard(TypeDictSource(self.cls_source).make_guard(not_there))


def _call_module(
    self: VariableTracker,
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    of_modules = tx.import_source("torch.nn.modules.module")
    for name in _HOOKS:
        install_guard(AttrSource(of_modules, name).make_guard(GuardBuilder.SEQUENCE_LENGTH))
    return _call(self, tx, args, kwargs)


def _are_one(source: Source, other: Source | None) -> Any:
    guard = _guard_one(source, other)
    if guard is None and other is not None and other != source:
        return functools.partial(GuardBuilder.DUPLICATE_INPUT, source_b=other)
    return guard


def _write_apart(self: SideEffects, cg: object) -> None:
    there = [v for v in self.id_to_variable.values() if isinstance(v.mutation_type, _EXISTING)]
    # guards cannot name a cell variable of a nested function
    with_names = [v for v in there if _has_name(v.source) and not isinstance(v, CellVariable)]
    if sources := {v.source for v in with_names if self.is_modified(v)}:
        guard = functools.partial(_are_apart, sources, [v.source for v in with_names])
        install_guard(Guard(GlobalStateSource(), guard))
    _write(self, cg)


def _match_keys(self: ConstDictVariable) -> None:
    _match(self)
    # Dynamo's guard reads the underlying dict, whose order ``move_to_end`` does not change
    if self.python_type() is collections.OrderedDict and _has_name(self.source):
        install_guard(self.source.make_guard(_has_order))


def _is_changed(self: ConstDictVariable) -> bool:
    before = [*self.original_items]
    if [k.vt for k in self.items][: len(before)] != before:
        self.should_reconstruct_all = True  # clear the dict, then write all items
    return bool(_has_new(self))


def _has_order(builder: GuardBuilder, guard: Guard) -> None:
    keys = [*builder.get(guard)]
    if all(ConstantVariable.is_literal(k) for k in keys):
        holds = f"[*{guard.name}] == {keys!r}"
        builder.object_aliasing_guard_codes.append((holds, f"{holds}  # in this order"))


def _class_for(value: object) -> Any:
    if not isinstance(value, collections.deque) or value.maxlen is None:
        return _class(value)

    def make(items: list[Any], source: Source) -> VariableTracker:
        length = AttrSource(source, "maxlen")
        install_guard(length.make_guard(GuardBuilder.CONSTANT_MATCH))
        return _class(value)(items, ConstantVariable.create(value.maxlen), source=source)

    return make


def _bind_arguments(
    self: UserFunctionVariable,
    parent: InstructionTranslatorBase,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> dict[str, VariableTracker]:
    """Name a function that Dynamo found without a name, so that what it reaches has names too.

    Dynamo takes what has no name for a constant, and for new if the function changes it.
    """
    function = self.fn
    held = function.__closure__ or function.__defaults__ or function.__kwdefaults__
    named = self.get_source() is None and held
    if named:
        name = parent.output.install_global_by_id("steep_function", function)
        # `source` of a method is that of the bound method
        vars(self)["get_source"] = lambda: GlobalSource(name)
    try:
        bound: dict[str, VariableTracker] = _bind(self, parent, args, kwargs)
    finally:
        if named:
            del vars(self)["get_source"]
    return bound


def _are_same(left: VariableTracker, right: VariableTracker) -> VariableTracker | None:
    a, b = left.realize(), right.realize()
    if a is b or not (_is_object(a) and _is_object(b)):
        return _same(left, right)
    if _is_made_anew(a.source) or _is_made_anew(b.source):  # such as a method of an object
        return ConstantVariable.create(False)
    guard_which_are_one(a.source, b.source)
    return ConstantVariable.create(_value_of(a.source) is _value_of(b.source))


def guard_which_are_one(a: Source, b: Source) -> None:
    """Guard on which of the objects that forward compares are one: one guard for each group.

    Two objects are in a group if they are compared, perhaps through others: `layer in layers` for
    each layer compares all pairs, but the guard grows with their number only.
    """
    output = InstructionTranslator.current_tx().output
    pairs: dict[tuple[Source, Source], None] = vars(output).setdefault("steep_compared", {})
    pairs[a, b] = None
    if len(pairs) == 1:
        install_guard(Guard(GlobalStateSource(), functools.partial(_stay_one_or_apart, pairs)))


def _stay_one_or_apart(
    pairs: Iterable[tuple[Source, Source]], builder: GuardBuilder, _: Guard
) -> None:
    group_of: dict[Source, list[Source]] = {}
    for a, b in pairs:
        left, right = group_of.setdefault(a, [a]), group_of.setdefault(b, [b])
        if left is not right:
            left += right
            group_of.update(dict.fromkeys(right, left))
    for group in {id(sources): sources for sources in group_of.values()}.values():
        first: dict[int, str] = {}
        for source in group:
            name = first.setdefault(id(builder.get(source)), source.name)
            if name != source.name:
                holds = f"{source.name} is {name}"
                builder.object_aliasing_guard_codes.append((holds, f"{holds}  # they are compared"))
        ids = ", ".join(f"id({name})" for name in first.values())
        holds = f"len({{{ids}}}) == {len(first)}"
        builder.object_aliasing_guard_codes.append((holds, f"{holds}  # they are compared"))


def _are_equal(left: VariableTracker, right: VariableTracker) -> VariableTracker | None:
    """Compare objects without a comparison of their own, and methods, which have one."""
    a, b = left.realize(), right.realize()
    if not (_is_object(a) and _is_object(b)):
        return _same(left, right)
    if all(isinstance(_value_of(v.source), types.MethodType) for v in (a, b)):
        are_equal = _value_of(a.source) == _value_of(b.source)
        guard_that(f"({a.source.name} == {b.source.name}) == {are_equal}", "forward compares them")
        return ConstantVariable.create(are_equal)
    if _is_made_anew(a.source) or _is_made_anew(b.source):
        return _same(left, right)
    return _are_same(left, right)


def _value_of(source: Source) -> object:
    return InstructionTranslator.current_tx().output.resolve_source_value(source)


def _is_made_anew(source: Source) -> bool:
    return _value_of(source) is not _value_of(source)


def _is_object(variable: VariableTracker) -> bool:
    """Return whether a variable is an object that was there before, and no number or string."""
    return _has_name(variable.source) and not isinstance(variable, (CellVariable, ConstantVariable))


_OF_TYPES = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)


def _wrap_method(self: builder.VariableBuilder, value: object) -> VariableTracker:
    if isinstance(value, _OF_TYPES):
        install_guard(self.source.make_guard(GuardBuilder.ID_MATCH))
    elif isinstance(value, types.MethodWrapperType):  # made anew each time
        name = AttrSource(self.source, "__name__")
        install_guard(name.make_guard(GuardBuilder.CONSTANT_MATCH))
    wrapped: VariableTracker = _wrap(self, value)
    return wrapped


def _has_name(source: Source | None) -> bool:
    try:
        return source is not None and bool(source.name)
    except NotImplementedError:  # such as the source of a stack of modes
        return False


def _are_apart(
    targets: set[Source], there: Sequence[Source], builder: GuardBuilder, _: Guard
) -> None:
    """Guard that a changed object is none of the others, which would then change too."""
    of_type: dict[type, list[Source]] = {}
    for source in there:
        of_type.setdefault(type(builder.get(source)), []).append(source)
    for kind, sources in of_type.items():
        if len(sources) > 1 and targets.intersection(sources) and kind is not torch.Tensor:
            ids = ", ".join(f"id({source.name})" for source in sources)
            holds = f"len({{{ids}}}) == {len(sources)}"
            builder.object_aliasing_guard_codes.append((holds, f"{holds}  # no two are one"))

"""Guards on what Python answers about classes and modules, which may change between calls."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from steep.dynamo.patches.class_guards import is_of_pytorch
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    BuiltinVariable,
    ConstantVariable,
    GlobalSource,
    InstructionTranslatorBase,
    SkipFunctionVariable,
    UserDefinedObjectVariable,
    VariableTracker,
    guard_that,
    unimplemented,
)

IS_INSTANCE = Substitution(
    BuiltinVariable,
    "call_isinstance",
    "Dynamo has no guard on the answer of a class that decides itself what its instances are, such "
    "as an abstract class with which others register.",
)
IS_SUBCLASS = Substitution(BuiltinVariable, "call_issubclass", "The same for its subclasses.")
IMPORT = Substitution(
    InstructionTranslatorBase,
    "import_source",
    "Dynamo has no guard that a module which forward imports is not replaced in `sys.modules`.",
)
FIND_SPEC = Substitution(
    SkipFunctionVariable,
    "call_function",
    "Dynamo has no guard on whether `importlib.util.find_spec` finds a module.",
    order=3,
)

_is_instance = BuiltinVariable.call_isinstance
_is_subclass = BuiltinVariable.call_issubclass
_import = InstructionTranslatorBase.import_source


@replaces(IS_INSTANCE, IS_SUBCLASS, IMPORT, FIND_SPEC)
def answer_guards() -> Iterator[None]:
    """Guard on answers about classes and modules that Dynamo takes for constant.

    These are ``isinstance`` and ``issubclass`` of classes that decide themselves, the modules that
    forward imports, and whether ``importlib.util.find_spec`` finds one.
    """
    with substitute(
        {
            IS_INSTANCE: _call_is_instance,
            IS_SUBCLASS: _call_is_subclass,
            IMPORT: _import_source,
            FIND_SPEC: _finding(SkipFunctionVariable.call_function),
        }
    ):
        yield


def _call_is_instance(
    self: BuiltinVariable, tx: InstructionTranslatorBase, arg: VariableTracker, of: VariableTracker
) -> VariableTracker:
    answer: VariableTracker = _is_instance(self, tx, arg, of)
    if isinstance(answer, ConstantVariable) and _decides(of.as_python_constant()):
        arg = arg.realize()
        if isinstance(arg, UserDefinedObjectVariable):
            _guard_answer(tx, isinstance, arg.value, of)
        else:
            _guard_answer(tx, issubclass, arg.python_type(), of)
    return answer


def _call_is_subclass(
    self: BuiltinVariable, tx: InstructionTranslatorBase, kind: VariableTracker, of: VariableTracker
) -> VariableTracker:
    answer: VariableTracker = _is_subclass(self, tx, kind, of)
    if isinstance(answer, ConstantVariable) and _decides(of.as_python_constant()):
        _guard_answer(tx, issubclass, kind.as_python_constant(), of)
    return answer


def _guard_answer(
    tx: InstructionTranslatorBase,
    ask: Callable[[Any, Any], bool],
    about: object,
    of: VariableTracker,
) -> None:
    kinds = of.as_python_constant()
    names = [tx.output.install_global_by_id("steep_asked", v) for v in (about, kinds)]
    call = f"{ask.__name__}(G[{names[0]!r}], G[{names[1]!r}])"
    guard_that(f"{call} == {ask(about, kinds)}", f"{about!r:.60} and {kinds!r:.60}")


def _decides(kinds: object) -> bool:
    """Return whether the answer of a class may change; those of PyTorch do not."""
    if isinstance(kinds, tuple) or get_args(kinds):
        return any(_decides(k) for k in (kinds if isinstance(kinds, tuple) else get_args(kinds)))
    if not isinstance(kinds, type) or is_of_pytorch(kinds):
        return False
    own = type(kinds)
    checks = own.__instancecheck__, own.__subclasscheck__
    return checks != (type.__instancecheck__, type.__subclasscheck__)


def _import_source(self: InstructionTranslatorBase, name: str) -> GlobalSource:
    module = sys.modules.get(name)
    kept = self.output.global_scope.get(f"__import_{name.replace('.', '_dot_')}", module)
    if kept is not module:
        unimplemented(
            gb_type="a module that was replaced",
            context=name,
            explanation=f"sys.modules has another module {name} than before",
            hints=[],
        )
    source = _import(self, name)
    if module is not None and name.partition(".")[0] not in ("torch", *sys.stdlib_module_names):
        of = self.output.install_global_by_id("steep_module", module)
        guard_that(f"__load_module('sys').modules.get({name!r}) is G[{of!r}]", "not replaced")
    return source


def _finding(call: Callable[..., VariableTracker]) -> Callable[..., VariableTracker]:
    """Return a ``call_function`` that guards on what ``find_spec`` finds."""

    def call_function(
        self: SkipFunctionVariable,
        tx: InstructionTranslatorBase,
        args: Sequence[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        found = call(self, tx, args, kwargs)
        if self.value is importlib.util.find_spec:
            given = ", ".join(repr(a.as_python_constant()) for a in args)
            finds = f"__load_module('importlib.util').find_spec({given})"
            is_there = importlib.util.find_spec(*(a.as_python_constant() for a in args)) is not None
            guard_that(f"({finds} is not None) == {is_there}", "as at the capture")
        return found

    return call_function

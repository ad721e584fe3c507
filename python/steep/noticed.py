"""What Dynamo reads without a condition, and may be another by the next call; what it forgets."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import UnspecializedNNModuleVariable, UserDefinedObjectVariable
from torch._dynamo.variables.dicts import SideEffectsProxyDict

from steep.quiet import replaced

_HOOKS = tuple(
    f"_global_{kind}_hooks" for kind in ("forward_pre", "forward", "backward_pre", "backward")
)


@contextlib.contextmanager
def noticed() -> Iterator[None]:
    """Within, a graph also holds only for

    - the methods that classes have under the names that were looked up, ``forward`` among them;
    - as many hooks of all modules as there are.

    Attributes that forward writes after ``torch.cond`` or a tensor's ``register_hook`` are written.
    """
    with (
        _written_after_regions(),
        replaced(UserDefinedObjectVariable, "get_source_by_walking_mro", _find_in_class),
        replaced(UnspecializedNNModuleVariable, "call_function", _call_module),
    ):
        yield


@contextlib.contextmanager
def _written_after_regions() -> Iterator[None]:
    """Let what stands for an object's ``__dict__`` write to the effects that are collected now.

    A region with a graph of its own leaves a copy of them in their place.
    """
    SideEffectsProxyDict.side_effects = _Present()
    try:
        yield
    finally:
        del SideEffectsProxyDict.side_effects


class _Present:
    def __set__(self, holder: Any, effects: Any) -> None:
        vars(holder)["side_effects"] = effects

    def __get__(self, holder: Any, owner: Any) -> Any:
        return vars(holder)["side_effects"].output_graph_weakref().side_effects


_find = UserDefinedObjectVariable.get_source_by_walking_mro
_call = UnspecializedNNModuleVariable.call_function


def _find_in_class(self: Any, tx: Any, name: str) -> Any:
    source = _find(self, tx, name)
    found = next(vars(c)[name] for c in type(self.value).__mro__ if name in vars(c))
    # what is ours is there while graphs are made, and gone at the next call
    if isinstance(found, types.FunctionType) and not str(found.__module__).startswith("steep."):
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))
    return source


def _call_module(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    of_modules = tx.import_source("torch.nn.modules.module")
    for name in _HOOKS:
        install_guard(AttrSource(of_modules, name).make_guard(GuardBuilder.SEQUENCE_LENGTH))
    return _call(self, tx, args, kwargs)

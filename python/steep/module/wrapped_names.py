"""Which names of an ORTModule are the wrapped module's, and the class that serves them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

_OF_EVERY_MODULE = frozenset(dir(torch.nn.Module)) | frozenset(vars(torch.nn.Module()))
# Names of an ORTModule that are the module's if it has them, too.
_MODULES_FIRST = (
    *("plan", "memory_report", "dump", "profile", "report"),
    *("precision", "fallback", "fallback_calls"),
)

_Classes = dict[tuple[type, frozenset[str], frozenset[str], bool], type]
_classes: weakref.WeakKeyDictionary[type, _Classes] = weakref.WeakKeyDictionary()


class _Wrapper(Protocol):
    """An ORTModule."""

    module: torch.nn.Module


def class_for(cls: type, module: torch.nn.Module, with_label: bool) -> type:
    """Return the subclass of ``cls`` for wrapped modules such as this one.

    Its ``forward`` has the signature of the wrapped ``forward``, unless it takes a label as well:
    frameworks pick the columns of a batch by the names of its parameters, and a method has the
    signature of its function. It returns the module's own attributes of ``_MODULES_FIRST``. Methods
    that the module has in place of those of ``torch.nn.Module``, such as ``parameters`` or
    ``eval``, are the module's.

    Args:
        cls: ``ORTModule``, or a subclass.
        module: the wrapped module.
        with_label: whether a call takes a label as well.
    """
    module_class = type(module)
    classes = _classes.setdefault(module_class, {})
    firsts = frozenset(name for name in _MODULES_FIRST if hasattr(module, name))
    methods = _replaced_methods(cls, module)
    key = cls, firsts, methods, with_label
    if key not in classes:

        def forward(self: _Wrapper, *args: object, **kwargs: object) -> object:
            return cls.forward(self, *args, **kwargs)  # type: ignore[attr-defined]

        # Without a signature, the forward keeps (*args, **kwargs).
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            own = None if with_label else inspect.signature(module_class.forward)
            forward.__signature__ = own  # type: ignore[attr-defined]
        forward.__doc__ = cls.forward.__doc__  # type: ignore[attr-defined]
        names: dict[str, object] = {name: _modules_attribute(name) for name in firsts}
        names |= {name: _modules_method(name, module_class) for name in methods}
        names |= {"forward": forward, "__module__": cls.__module__}
        classes[key] = type(cls.__name__, (cls,), names)
    return classes[key]


def belongs_to_wrapper(
    name: str, value: object, own: Mapping[str, object], module: torch.nn.Module
) -> bool:
    """Return whether an ORTModule keeps an attribute itself that is assigned to it.

    It keeps what would replace a method: a framework that replaces ``forward`` or ``train`` wraps
    the ORTModule's, and the module keeps its own. So do functions under a private name, since
    frameworks remember the former method there. Anything else may be read by the module's forward.

    Args:
        name, value: the attribute.
        own: what the ORTModule has.
        module: the wrapped module.
    """
    if name in _MODULES_FIRST:
        return name in own and not hasattr(module, name)
    if name in _OF_EVERY_MODULE or name in own or name.startswith("__"):
        return True
    functions = (types.FunctionType, types.MethodType, functools.partial)
    return name.startswith("_") and not hasattr(module, name) and isinstance(value, functions)


def _replaced_methods(cls: type, module: torch.nn.Module) -> frozenset[str]:
    """Return the public methods of ``torch.nn.Module`` that a module has replaced.

    Without those that ``cls`` forwards itself.
    """
    own = {
        name for base in cls.__mro__ if base not in torch.nn.Module.__mro__ for name in vars(base)
    }
    module_class = type(module)
    return frozenset(
        name
        for name, method in vars(torch.nn.Module).items()
        if isinstance(method, types.FunctionType)
        and not name.startswith("_")
        and name not in own
        and (name in vars(module) or getattr(module_class, name) is not method)
    )


def _modules_attribute(name: str) -> property:
    return property(lambda self: getattr(self.module, name))


def _modules_method(name: str, module_class: type) -> Callable[..., object]:
    @functools.wraps(getattr(module_class, name))
    def call(self: _Wrapper, *args: object, **kwargs: object) -> object:
        result: object = getattr(self.module, name)(*args, **kwargs)
        return self if result is self.module else result  # as of `model = model.to(…)`

    return call

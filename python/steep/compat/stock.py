"""The ``onnxruntime`` that is installed, while the name is ours.

>>> from steep.compat import stock
>>> stock.InferenceSession("model.onnx")
>>> stock.quantization.quantize_dynamic("model.onnx", "small.onnx")

Its code imports itself by the name ``onnxruntime``, at times only when it runs; ``in_place`` gives
the name back for a while.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Protocol

from steep.compat.refusals import NotOffered

ROOTS = ("onnxruntime", "torch_ort")


class Hook(Protocol):
    """What serves the names in the place of the installed packages, while it is active."""

    active: bool


_lock = threading.RLock()
_modules: dict[str, ModuleType] = {}
_hooks: list[Hook] = []  # at most one


def is_served(module: str) -> bool:
    """Return whether the import hook answers for a module of this name."""
    return module.partition(".")[0] in ROOTS


def stand_before(hook: Hook | None) -> None:
    """Say what serves the names from now on; None: the installed packages do."""
    _hooks[:] = [] if hook is None else [hook]


def keep(modules: Mapping[str, ModuleType]) -> None:
    """Take over what was imported before the names were served."""
    _modules.update(modules)


def kept() -> dict[str, ModuleType]:
    """Return the modules of the installed package that are loaded, by name."""
    return dict(_modules)


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """Within, ``onnxruntime`` is the installed package: for the whole process, threads included."""
    if not _hooks:
        yield
        return
    with _lock:
        before = {name: sys.modules.pop(name) for name in [*sys.modules] if is_served(name)}
        (hook,) = _hooks
        active, hook.active = hook.active, False
        sys.modules.update(_modules)
        try:
            yield
        finally:
            hook.active = active
            keep({n: sys.modules.pop(n) for n in [*sys.modules] if is_served(n)})
            sys.modules.update(before)


def _load(name: str) -> ModuleType:
    with in_place():
        return importlib.import_module(name)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        package = _load("onnxruntime")
    except ModuleNotFoundError as error:
        raise NotOffered(
            "No onnxruntime is installed beside Steep.", remedy="pip install onnxruntime"
        ) from error
    if hasattr(package, name):
        return getattr(package, name)
    try:
        return _load(f"onnxruntime.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"the installed onnxruntime has no {name!r}") from None

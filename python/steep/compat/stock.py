"""The installed ``onnxruntime``, while ``onnxruntime`` is served by Steep.

>>> from steep.compat import stock
>>> stock.InferenceSession("model.onnx")
>>> stock.quantization.quantize_dynamic("model.onnx", "small.onnx")

Its code imports itself by the name ``onnxruntime``, at times only when it runs; ``in_place``
restores the name for a while.
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
    """The import hook that, while active, serves the names instead of the installed packages."""

    active: bool


_lock = threading.RLock()
_modules: dict[str, ModuleType] = {}
_hooks: list[Hook] = []  # at most one


def is_served(module: str) -> bool:
    """Return whether the import hook serves a module of this name."""
    return module.partition(".")[0] in ROOTS


def stand_before(hook: Hook | None) -> None:
    """Set the import hook that serves the names; None: the installed packages do."""
    _hooks[:] = [] if hook is None else [hook]


def keep(modules: Mapping[str, ModuleType]) -> None:
    """Store modules of the installed package."""
    _modules.update(modules)


def loaded_modules() -> dict[str, ModuleType]:
    """Return the loaded modules of the installed package, by name."""
    return dict(_modules)


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """Make ``onnxruntime`` the installed package inside the ``with`` block, for all threads."""
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

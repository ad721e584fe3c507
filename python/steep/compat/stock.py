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
from typing import Any

from steep.compat import finder
from steep.compat.refusals import NotOffered

_turn = threading.RLock()
_modules: dict[str, ModuleType] = {}


def keep(modules: Mapping[str, ModuleType]) -> None:
    """Take over what was imported before the names were served."""
    _modules.update(modules)


def kept() -> dict[str, ModuleType]:
    """Return the modules of the installed package that are loaded, by name."""
    return dict(_modules)


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """Within, ``onnxruntime`` is the installed package: for the whole process, threads included."""
    if finder.FINDER not in sys.meta_path:
        yield
        return
    with _turn:
        before = {name: sys.modules.pop(name) for name in [*sys.modules] if finder.own(name)}
        active, finder.FINDER.active = finder.FINDER.active, False
        sys.modules.update(_modules)
        try:
            yield
        finally:
            finder.FINDER.active = active
            keep({n: sys.modules.pop(n) for n in [*sys.modules] if finder.own(n)})
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

"""Methods other than ``forward``: PyTorch runs them, and a warning names each once."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger("steep")


class OtherMethods:
    """Watches the methods other than ``forward``, which PyTorch runs instead of the engine.

    Args:
        module: the module whose methods are watched.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.texts: list[str] = []  # one text for each method that computed with tensors
        self._wrappers: dict[Callable[..., Any], Callable[..., Any]] = {}

    def watch(self, method: types.MethodType) -> types.MethodType:
        """Return the method; methods of the module's own class get a wrapper that warns."""
        function = method.__func__
        if method.__self__ is not self.module or _is_of_pytorch(function):
            return method
        if function not in self._wrappers:
            self._wrappers[function] = self._saying(function)
        return types.MethodType(self._wrappers[function], self.module)

    def _saying(self, function: Callable[..., Any]) -> Callable[..., Any]:
        is_said = False

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            nonlocal is_said
            result = function(*args, **kwargs)
            if not (is_said or torch.compiler.is_compiling()) and _has_tensors(
                (args[1:], kwargs, result)
            ):
                is_said = True
                self._say(function)
            return result

        return call

    def _say(self, function: Callable[..., Any]) -> None:
        code = function.__code__
        name = f"{type(self.module).__name__}.{function.__name__}"
        text = (
            f"{name} ({code.co_filename}:{code.co_firstlineno}): the engine runs forward alone; "
            f'call torch.compile(module.{function.__name__}, backend="steep"), or compute it in '
            "forward"
        )
        self.texts.append(text)
        log.warning("PyTorch runs a method other than forward: %s", text)


def _is_of_pytorch(function: object) -> bool:
    """Return whether every module has this method, or it is not a Python function."""
    is_function = isinstance(function, types.FunctionType)
    return not is_function or function.__module__.startswith("torch.nn.modules.module")


def _has_tensors(values: object) -> bool:
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, (tuple, list)):
        return any(map(_has_tensors, values))
    return isinstance(values, torch.Tensor)

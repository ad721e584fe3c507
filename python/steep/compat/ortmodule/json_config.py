"""``experimental.json_config``: configures an ORTModule from a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from steep.compat.log_level import LogLevel
from steep.compat.notices import say_once
from steep.compat.ortmodule import environment, settings
from steep.compat.ortmodule.debug_options import DebugOptions
from steep.compat.ortmodule.fallback import _FallbackPolicy
from steep.errors import DataError

_WITHOUT_MEANING = {
    "PropagateCastOps": settings.PROPAGATE_CASTS,
    "UseExternalGPUAllocator": "Steep does not run on GPUs",
    "EnableCustomAutogradFunction": settings.CUSTOM_AUTOGRAD,
    "EnableGradAccOptimization": "gradients are added up by PyTorch",
    "RunSymbolicShapeInference": "shapes are inferred, symbolic where they vary, always",
    "UseStaticShape": "a graph is compiled for the shapes that it gets, always",
    "SkipCheck": "graphs are captured with the conditions under which they hold",
    "UseMemoryEfficientGradient": "the planner decides what backward computes again",
    "OnnxOpsetVersion": "the engine reads every opset",
}


class Configured(Protocol):
    """The object that a file configures: an ORTModule."""

    def set_debug_options(self, options: DebugOptions | None) -> None:
        """Set the log level, and which files are written."""

    def set_fallback_policy(self, policy: _FallbackPolicy) -> None:
        """Set for which failures of the engine PyTorch may run a call."""


def load_from_json(ortmodule: Configured, path: str | os.PathLike[str] | None = None) -> None:
    """Apply DebugOptions and FallbackPolicy of a JSON file; log that other keys have no effect.

    Args:
        ortmodule: the ORTModule to configure.
        path: path of the file. ORTMODULE_JSON_CONFIG_PATH takes precedence.

    Raises:
        KeyError: the file has an unknown key.
        DataError: it is no JSON object, a value is not supported, or no path is given.
        FileNotFoundError: there is no such file.
    """
    file = environment.text("JSON_CONFIG_PATH") or path
    if not file:
        raise DataError(
            "No file is named.",
            expected="a path",
            remedy="pass path, or ORTMODULE_JSON_CONFIG_PATH",
        )
    try:
        config = json.loads(Path(file).read_text(encoding="utf-8"))
    except json.JSONDecodeError as e:
        raise DataError("The file is not JSON.", node=str(file), received=str(e)) from e
    if not isinstance(config, dict):
        raise DataError("The file does not contain a JSON object.", node=str(file))
    setters: dict[str, Callable[[Configured, Any], None]] = {
        "DebugOptions": _debug_options,
        "FallbackPolicy": _fallback_policy,
    }
    for key in config:
        if key not in setters and key not in _WITHOUT_MEANING:
            raise KeyError(f"{key}: expected {', '.join([*setters, *_WITHOUT_MEANING])}")
    for key, value in config.items():
        if key in setters:
            setters[key](ortmodule, value)
        else:
            say_once(key, _WITHOUT_MEANING[key])


def _debug_options(ortmodule: Configured, config: dict[str, Any]) -> None:
    expected = ("LogLevel", "SaveONNX", "ONNXPrefix", "SaveONNXPath")
    for key in config:
        if key not in expected:
            raise KeyError(f"DebugOptions.{key}: expected {', '.join(expected)}")
    level = config.get("LogLevel", "WARNING")
    if level not in LogLevel.__members__:
        raise _unknown("DebugOptions.LogLevel", list(LogLevel.__members__), level)
    ortmodule.set_debug_options(
        DebugOptions(
            LogLevel[level],
            bool(config.get("SaveONNX", False)),
            config.get("ONNXPrefix", ""),
            config.get("SaveONNXPath", ""),
        )
    )


def _fallback_policy(ortmodule: Configured, names: list[str] | str) -> None:
    policies = [names] if isinstance(names, str) else names
    ortmodule.set_fallback_policy(environment.parse_policy(policies, "FallbackPolicy"))


def _unknown(key: str, expected: list[str], received: object) -> DataError:
    return DataError(
        "The file has a setting that is not supported.",
        node=key,
        expected=", ".join(expected),
        received=str(received),
    )

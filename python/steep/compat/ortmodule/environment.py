"""The environment variables of ONNX Runtime Training: what each does here, or why it has no effect.

docs/environment.md documents them for users.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from steep.compat.log_level import LogLevel
from steep.compat.notices import say_once
from steep.compat.ortmodule import settings
from steep.compat.ortmodule.fallback import DEFAULT, _FallbackPolicy
from steep.errors import DataError

PREFIX = "ORTMODULE_"
_ON, _OFF = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")


@dataclasses.dataclass(frozen=True)
class Variable:
    """An environment variable.

    Attributes:
        name: its name without ORTMODULE_.
        default: its value if it is not set.
        without_meaning: why it has no effect; empty if it has one.
    """

    name: str
    default: str
    without_meaning: str = ""


_CASES = "graphs are captured with the conditions under which they hold"
_PASSES = "passes over the graph that keep its results are always on"
_DENSITY = "there is no pass that depends on the density of inputs"
_GPU = "it concerns GPU kernels only"
_TUNED = "kernels are chosen when a graph is compiled, for the shapes that it gets"
_SHARDED = "parameters are read where they are at each call, gathered or not"
_OPSET = "the engine reads every opset, and PyTorch's exporter chooses the one that it writes"
_COPIED = "a capture copies nothing, and leaves the module as it was"

VARIABLES: tuple[Variable, ...] = (
    Variable("FALLBACK_POLICY", "8|16|32|64"),
    Variable("FALLBACK_RETRY", "0"),
    Variable("LOG_LEVEL", "WARNING"),
    Variable("SAVE_ONNX_PATH", ""),
    Variable("CACHE_DIR", ""),
    Variable("PRINT_MEMORY_STATS", "0"),
    Variable("JSON_CONFIG_PATH", ""),
    Variable("MEMORY_OPT_LEVEL", "0"),
    Variable("MEMORY_OPT_CONFIG", ""),
    Variable("ONNX_OPSET_VERSION", "17", _OPSET),
    Variable("SKIPCHECK_POLICY", "SKIP_CHECK_DEVICE|…", _CASES),
    Variable("CONV_ALGO_SEARCH", "HEURISTIC", _TUNED),
    Variable("ENABLE_COMPUTE_OPTIMIZER", "1", _PASSES),
    Variable("ENABLE_LABEL_SPARSE_OPTIMIZER", "1", _DENSITY),
    Variable("ENABLE_EMBEDDING_SPARSE_OPTIMIZER", "1", _DENSITY),
    Variable("PRINT_INPUT_DENSITY", "0", _DENSITY),
    Variable("ENABLE_CUSTOM_AUTOGRAD", "1", settings.CUSTOM_AUTOGRAD),
    Variable("DISABLE_CUSTOM_AUTOGRAD_SUPPORT", "0", settings.CUSTOM_AUTOGRAD),
    Variable("SKIPPED_AUTOGRAD_FUNCTIONS", "", settings.CUSTOM_AUTOGRAD),
    Variable("ALLOW_AUTOGRAD_CHECKPOINT", "0", "checkpointed functions are captured, always"),
    Variable("USE_TRITON", "0", _GPU),
    Variable("TRITON_CONFIG_FILE", "", _GPU),
    Variable("TRITON_DEBUG", "0", _GPU),
    Variable("USE_FLASH_ATTENTION", "0", "attention is computed in tiles, always"),
    Variable("USE_EFFICIENT_ATTENTION", "0", "attention is computed in tiles, always"),
    Variable("ATEN_SDPA_FALLBACK", "0", "attention is computed in tiles, always"),
    Variable("ENABLE_TUNING", "0", _TUNED),
    Variable("MAX_TUNING_DURATION_MS", "0", _TUNED),
    Variable("TUNING_RESULTS_PATH", "", _TUNED),
    Variable("ENABLE_ZERO_STAGE3", "0", _SHARDED),
    Variable("ENABLE_MEM_EFFICIENT_GRAD_MGMT", "0", "gradients are PyTorch's tensors, made once"),
    Variable("DEEPCOPY_BEFORE_MODEL_EXPORT", "1", _COPIED),
)


def _get(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    return (os.environ if environ is None else environ).get(PREFIX + name)


def _wrong(name: str, expected: str, received: str) -> DataError:
    return DataError(
        "An environment variable asks for a setting that does not exist.",
        node=name,
        expected=expected,
        received=received,
        remedy="docs/environment.md lists the variables",
    )


def say_what_has_no_meaning() -> None:
    """Warn once of each variable without effect that is not set to its default.

    Also warns of variables that ONNX Runtime did not have, which are most likely misspelt.
    """
    variables = {v.name: v for v in VARIABLES}
    for name in sorted(os.environ):
        if not name.startswith(PREFIX):
            continue
        variable = variables.get(name[len(PREFIX) :])
        if variable is None:
            say_once(name, "there is no such variable")
        elif variable.without_meaning and os.environ[name] != variable.default:
            say_once(name, variable.without_meaning)


def fallback_policy() -> _FallbackPolicy:
    """Return the value of FALLBACK_POLICY: names of flags, joined by "|".

    Raises:
        DataError: there is no such flag.
    """
    text = _get("FALLBACK_POLICY")
    if text is None:
        return DEFAULT
    return parse_policy([part.strip() for part in text.split("|")])


def parse_policy(names: list[str], key: str = PREFIX + "FALLBACK_POLICY") -> _FallbackPolicy:
    """Return the flags of these names; ``key`` names their source in errors.

    Raises:
        DataError: there is no such flag.
    """
    policy = _FallbackPolicy(0)
    for name in names:
        if name not in _FallbackPolicy.__members__:
            raise _wrong(key, ", ".join(_FallbackPolicy.__members__), name)
        policy |= _FallbackPolicy[name]
    return policy


def switch(name: str, default: bool = False) -> bool:
    """Return whether a variable is switched on.

    Raises:
        DataError: its value is neither on nor off.
    """
    text = _get(name)
    if text is None:
        return default
    if text.lower() not in _ON + _OFF:
        raise _wrong(PREFIX + name, "0 or 1", text)
    return text.lower() in _ON


def log_level() -> LogLevel | None:
    """Return the value of LOG_LEVEL; None if it is not set.

    Raises:
        DataError: there is no such level.
    """
    text = _get("LOG_LEVEL")
    if text is None:
        return None
    if text not in LogLevel.__members__:
        raise _wrong(PREFIX + "LOG_LEVEL", ", ".join(LogLevel.__members__), text)
    return LogLevel[text]


def text(name: str) -> str:
    """Return a variable's text, "" if it is not set."""
    return _get(name) or ""


def apply_cache_dir() -> None:
    """Set STEEP_CACHE to the folder of CACHE_DIR, unless it is set already."""
    folder = text("CACHE_DIR")
    if folder:
        os.environ.setdefault("STEEP_CACHE", folder)

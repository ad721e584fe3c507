"""Options of an inference session, with the names of ONNX Runtime 1.19."""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence

from steep.compat.notices import say_once
from steep.errors import ModelError
from steep.session import inference

_PLANNED = "the engine plans memory and the order of nodes ahead, and runs one node at a time"


class ExecutionMode(enum.IntEnum):
    """Whether nodes run one after the other. Here they always do."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """The order of nodes. Here the planner chooses it."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


_DEFAULTS = {
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "enable_mem_reuse": True,
    "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
    "execution_order": ExecutionOrder.DEFAULT,
    "inter_op_num_threads": 0,
    "log_verbosity_level": 0,
    "logid": "",
    "optimized_model_filepath": "",
    "use_deterministic_compute": False,
    "use_per_session_threads": True,
}
_WHY = {
    "log_verbosity_level": 'logging.getLogger("steep") has the level',
    "logid": "log messages have no such name",
    "optimized_model_filepath": "no file is written; `steep dump` prints the graph that runs",
    "use_deterministic_compute": "every run is deterministic",
    "use_per_session_threads": "OpenMP has the threads",
}


class SessionOptions(inference.SessionOptions):
    """``steep.SessionOptions``, and the names of ONNX Runtime that have no effect here.

    A log message says so once when such a name gets another value than its default. A name that
    neither package has raises AttributeError.
    """

    __slots__ = (*_DEFAULTS, "_entries")

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, str] = {}
        for name, value in _DEFAULTS.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _DEFAULTS and value != _DEFAULTS[name]:
            say_once(f"SessionOptions.{name}", _WHY.get(name, _PLANNED))
        object.__setattr__(self, name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store a setting. A log message says once that it has no effect."""
        self._entries[key] = value
        say_once(f"the session's setting {key!r}", "settings by name are not supported")

    def get_session_config_entry(self, key: str) -> str:
        """Return a stored setting. Raises KeyError."""
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        """Accepted: a session compiles the graph for the extents of each run's inputs."""
        say_once(
            f"the extent {extent} of the dimension {name!r}", "the inputs of a run have the extents"
        )

    def add_free_dimension_override_by_denotation(self, denotation: str, extent: int) -> None:
        """Accepted: a session compiles the graph for the extents of each run's inputs."""
        self.add_free_dimension_override_by_name(denotation, extent)

    def has_providers(self) -> bool:
        """Return False: the session's argument ``providers`` has them."""
        return False

    def add_initializer(self, name: str, value: object) -> None:
        """Raise ModelError: a session reads the initializers of its file."""
        raise _refusal(
            f"add_initializer({name!r})", "Write the values into the model's initializers."
        )

    def add_external_initializers(self, names: Sequence[str], values: Sequence[object]) -> None:
        """Raise ModelError: a session reads the initializers of its file."""
        raise _refusal(
            f"add_external_initializers({list(names)})",
            "Write the values into the model's initializers.",
        )

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        """Raise ModelError: operators are registered as ONNX functions or provider plug-ins."""
        raise _refusal(
            f"register_custom_ops_library({os.fspath(path)!r})",
            "Register the operators with steep.register_op.",
        )


def _refusal(call: str, remedy: str) -> ModelError:
    return ModelError(
        f"SessionOptions.{call} is not supported.", node="SessionOptions", remedy=remedy
    )

"""``DebugOptions``: what an ORTModule says, and what it writes of its graphs."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

from steep.compat.log_level import LogLevel
from steep.compat.ortmodule import environment

log = logging.getLogger("steep")


_LEVELS = {
    LogLevel.VERBOSE: logging.DEBUG,
    LogLevel.DEVINFO: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.FATAL: logging.CRITICAL,
}


@dataclasses.dataclass
class DebugOptions:
    """What an ORTModule says, and what it writes of its graphs.

    Files are written when a graph is made: ``PREFIX_torch_exported_MODE.onnx``, what was captured;
    ``PREFIX_optimized_pre_grad_MODE.onnx``, what ``register_graph_optimizer`` made of it;
    ``PREFIX_execution_model_training.onnx``, forward and backward in standard operators;
    ``PREFIX_optimized_MODE.onnx``, the compiled graph, to look at (in Netron, for one): its fused
    operators are in the domain "steep" and no runtime knows them; ``PREFIX_optimized_MODE.txt``,
    the same with kernels and the plan of memory. MODE is "training" or "inference"; a second graph
    has "_2" after PREFIX.

    At INFO and below, the logger says of each graph how it came about, and in a table what each
    stage of the compiler took (milliseconds), how many nodes it left, and the planned memory.

    Args:
        log_level: of the logger ``steep``. ORTMODULE_LOG_LEVEL goes before it.
        save_onnx: write files.
        onnx_prefix: of their names; "" for the name of the module's class.
        save_path: their folder; "" for ORTMODULE_SAVE_ONNX_PATH, or else the present one.
        config: taken for compatibility.

    Raises:
        TypeError: the prefix is no string, or the level no LogLevel.
        OSError: the folder cannot be written.
    """

    log_level: LogLevel = LogLevel.WARNING
    save_onnx: bool = False
    onnx_prefix: str = ""
    save_path: str = ""
    config: Any = None

    def __post_init__(self) -> None:
        given = self.log_level
        if not isinstance(given, LogLevel):
            raise TypeError(f"log_level must be a LogLevel, not {given!r}")
        asked = environment.log_level()
        self.log_level = given if asked is None else asked
        if not isinstance(self.onnx_prefix, str):
            raise TypeError(f"onnx_prefix must be a string, not {self.onnx_prefix!r}")
        if self.save_onnx and not os.access(self.folder, os.W_OK):
            raise OSError(f"the folder {self.folder} cannot be written")

    @property
    def folder(self) -> Path:
        """Where files go."""
        return Path(self.save_path or environment.text("SAVE_ONNX_PATH") or ".")

    def apply_level(self) -> None:
        """Set the logger's level; what is to be said is written to stderr, if nowhere else."""
        log.setLevel(_LEVELS[self.log_level])
        if self.log_level < LogLevel.WARNING and not log.hasHandlers():
            log.addHandler(logging.StreamHandler())

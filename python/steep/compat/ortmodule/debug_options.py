"""``DebugOptions``: an ORTModule's log level, and the files it writes of its graphs."""

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
    """An ORTModule's log level, and the files that it writes of its graphs.

    Files are written when a graph is made:

    ``PREFIX_torch_exported_MODE.onnx``: the captured graph;
    ``PREFIX_optimized_pre_grad_MODE.onnx``: the graph after ``register_graph_optimizer``'s
    functions; ``PREFIX_execution_model_MODE.onnx``: forward and backward in standard operators;
    ``PREFIX_optimized_MODE.onnx``: the compiled graph, for viewers such as Netron: its fused
    operators are in the domain "steep", which no runtime knows;
    ``PREFIX_optimized_MODE.txt``: the same with kernels and the memory plan.

    MODE is "training" for a graph with gradients of a module in training mode, otherwise
    "inference"; a second graph of a mode has "_2" after PREFIX.

    At INFO and below, the logger reports how each graph was made, with a table of the compiler's
    stages: their time (milliseconds), the number of nodes after them, and the planned memory.

    Args:
        log_level: level of the logger ``steep``. ORTMODULE_LOG_LEVEL takes precedence.
        save_onnx: whether to write files.
        onnx_prefix: prefix of their names; "" for the name of the module's class.
        save_path: their folder; "" for ORTMODULE_SAVE_ONNX_PATH, or else the current folder.
        config: accepted for compatibility.

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
        level = self.log_level
        if not isinstance(level, LogLevel):
            raise TypeError(f"log_level must be a LogLevel, not {level!r}")
        override = environment.log_level()
        self.log_level = level if override is None else override
        if not isinstance(self.onnx_prefix, str):
            raise TypeError(f"onnx_prefix must be a string, not {self.onnx_prefix!r}")
        if self.save_onnx and not os.access(self.folder, os.W_OK):
            raise OSError(f"the folder {self.folder} cannot be written")

    @property
    def folder(self) -> Path:
        """The folder for files."""
        return Path(self.save_path or environment.text("SAVE_ONNX_PATH") or ".")

    def apply_level(self) -> None:
        """Set the logger's level; add a handler for stderr if there is none."""
        log.setLevel(_LEVELS[self.log_level])
        if self.log_level < LogLevel.WARNING and not log.hasHandlers():
            log.addHandler(logging.StreamHandler())

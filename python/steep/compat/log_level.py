"""``LogLevel``: the level of the logger ``steep``."""

from __future__ import annotations

import enum


class LogLevel(enum.IntEnum):
    """Levels of the logger ``steep``."""

    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5

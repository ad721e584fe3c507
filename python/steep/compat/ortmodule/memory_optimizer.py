"""ONNX Runtime's memory optimizer: its environment variables as a memory limit."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from steep.compat.ortmodule import environment
from steep.errors import DataError

log = logging.getLogger("steep")

LEVEL, CONFIG = "MEMORY_OPT_LEVEL", "MEMORY_OPT_CONFIG"
_ENTRY = "CLUSTER:STRATEGY:COUNT, a strategy of 0, 1 or 2, a count of -1 or more"


def memory_limit() -> str:
    """Return the memory limit that the two variables stand for: "least", or "" for none.

    In ONNX Runtime, users name clusters of nodes, or whole layers, that backward recomputes. In
    Steep the planner knows which recomputation saves memory, and when; so the variables can only
    request that it saves as much as possible.

    Raises:
        DataError: the level or an entry does not exist, or the file cannot be read.
    """
    level = environment.text(LEVEL) or "0"
    if level not in ("0", "1", "2"):
        raise _wrong(LEVEL, "0, 1 or 2", level)
    saves_memory = level != "0" or any(_recomputes(entry) for entry in _entries())
    if saves_memory:
        log.info("the memory optimizer is asked for: backward computes again what saves memory")
    return "least" if saves_memory else ""


def _entries() -> list[str]:
    """Return the entries of the file; before 1.19 the variable contained them, joined by commas."""
    config = environment.text(CONFIG)
    if not config:
        return []
    path = Path(config)
    if not path.exists() and ":" in config:
        return [entry.strip() for entry in config.split(",")]
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise _wrong(CONFIG, "the path of a JSON file", f"{config}: {e}") from e
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise _wrong(CONFIG, f"a JSON list of entries {_ENTRY}", config)
    return entries


def _recomputes(entry: str) -> bool:
    cluster, _, rest = entry.partition(":")
    strategy, _, count = rest.partition(":")
    try:
        number = int(count)
    except ValueError:
        number = -2
    if not cluster or strategy not in ("0", "1", "2") or number < -1:
        raise _wrong(CONFIG, _ENTRY, entry)
    return strategy != "0" and number != 0


def _wrong(name: str, expected: str, received: str) -> DataError:
    return DataError(
        "The memory optimizer cannot be set up.",
        node=environment.PREFIX + name,
        expected=expected,
        received=received,
        remedy="correct the variable, or unset it and state a memory_limit (docs/memory.md)",
    )

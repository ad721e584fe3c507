"""Contestants that take one step each in turn, in one process: drift then hits all alike."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping

from run import KEEP_MEMORY, say


def keep_memory() -> None:
    """Start this program again under malloc settings that keep freed memory, unless it has them."""
    if not all(os.environ.get(name) == value for name, value in KEEP_MEMORY.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})


def print_medians(steps: Mapping[str, Callable[[], None]], turns: int, warm_up: int) -> None:
    """Time steps in turn, and print the median of each contestant in milliseconds.

    Args:
        steps: by name of the contestant, what makes one step.
        turns: how many steps of each count.
        warm_up: how many before them do not.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + warm_up):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= warm_up:
                times[name].append(1e3 * (time.perf_counter() - start))
        say(f"turn {turn + 1} of {turns + warm_up}")
    for name, durations in times.items():
        print(f"{name:32} {statistics.median(durations):8.0f} ms")

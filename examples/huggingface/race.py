"""Two contestants take turns, step by step the same training; what they took, and how far apart."""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.forkserver
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import contestant
from contestant import Plan

STEEP, PYTORCH = "Steep", "PyTorch"
CLOSE = 5
"""Steps after which losses may part a little: training magnifies rounding."""
LIMITS = {"float32": (5e-4, 1e-2), "bfloat16": (3e-2, 0.2)}
"""How far apart, in loss, they may be in these steps, and later."""


class RaceError(Exception):
    """A contestant failed, or they do not train the same; the message has all that is known."""


@dataclass
class Contestant:
    """A process that trains, and what it has said so far."""

    name: str
    process: Any
    connection: Any
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Of each step; the first is the one with capture and compilation."""
    ready: dict[str, Any] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)

    def hear(self, kind: str) -> Any:
        """Return what comes next, which is to be of this kind."""
        try:
            message, content = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(10)
            raise RaceError(
                f"{self.name}'s process ended with {self.process.exitcode}: "
                "if that is -9, the system had no memory left"
            ) from None
        if message == "failed":
            raise RaceError(f"{self.name} failed:\n{content}")
        if message != kind:
            raise RaceError(f"{self.name} said {message}, not {kind}")
        return content


@dataclass(frozen=True)
class Result:
    """The steps that both have made."""

    steep: Contestant
    torch: Contestant
    turn: int

    @property
    def steps(self) -> int:
        """How many both have made."""
        return min(len(self.steep.losses), len(self.torch.losses))

    def differences(self) -> list[float]:
        """How far apart the losses of each step are; NaN where one of them is."""
        pairs = zip(self.steep.losses, self.torch.losses, strict=False)
        return [abs(a - b) for a, b in pairs]

    def parted_at(self, precision: str) -> int | None:
        """Return the first step, from 1, whose losses differ by more than rounding; or None."""
        soon, later = LIMITS[precision]
        for step, difference in enumerate(self.differences(), 1):
            if not difference <= (soon if step <= CLOSE else later):  # NaN is not, either
                return step
        return None

    def times_faster(self) -> float | None:
        """PyTorch's time by Steep's, the median over turns; None before there was one."""
        ratios = []
        for start in range(1, self.steps, self.turn):
            turn = slice(start, min(start + self.turn, self.steps))
            ratios.append(sum(self.torch.seconds[turn]) / sum(self.steep.seconds[turn]))
        return statistics.median(ratios) if ratios else None


def prepare() -> None:
    """Have a process import what contestants need, and be copied for each; returns at once."""
    multiprocessing.set_forkserver_preload(["torch", "transformers.trainer", "accelerate"])
    multiprocessing.forkserver.ensure_running()


def run(
    plan: Plan,
    turn: int,
    show: Callable[[Contestant], None],
    stop: Callable[[], bool],
) -> Result:
    """Let both train, `turn` steps at a time, the first step of each alone.

    show: called after each step. stop: asked after each step whether to end.
    Raises RaceError where one fails, or they did not begin with the same weights.
    """
    method = multiprocessing.get_context("forkserver")
    both = []
    for name in (STEEP, PYTORCH):
        here, there = method.Pipe()
        process = method.Process(
            target=contestant.run, args=(there, name == STEEP, plan), name=name, daemon=True
        )
        process.start()
        there.close()
        both.append(Contestant(name, process, here))
    try:
        _take_turns(both, plan.steps, turn, show, stop)
    finally:
        for each in both:
            each.connection.close()  # a process that waits, or speaks, ends by that
        for each in both:
            each.process.join(2)
            if each.process.is_alive():
                each.process.kill()
    return Result(both[0], both[1], turn)


def _take_turns(
    both: list[Contestant],
    steps: int,
    turn: int,
    show: Callable[[Contestant], None],
    stop: Callable[[], bool],
) -> None:
    for each in both:
        each.ready = each.hear("ready")
    if both[0].ready != both[1].ready:
        raise RaceError(f"they begin with different models: {both[0].ready}, {both[1].ready}")
    lengths = [1, *(min(turn, steps - step) for step in range(1, steps, turn))]
    for length in lengths:
        for each in both:
            each.connection.send(length)
            for _ in range(length):
                loss, seconds = each.hear("step")
                each.losses.append(loss)
                each.seconds.append(seconds)
                show(each)
                if stop():
                    return
    for each in both:
        each.connection.send(None)
        each.done = each.hear("done")


def largest(differences: list[float]) -> str:
    """Return the largest as text, such as 2e-06: what is not a number is larger than all."""
    if not all(map(math.isfinite, differences)):
        return "not a number"
    return f"{max(differences):.0e}" if any(differences) else "0"

"""A schedule of the learning rate that is a function of the step's number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from steep import _steep
from steep.errors import DataError, ModelError

RateFunction = Callable[[int], float]

# The engine's property, which TrainingSession replaces.
engine_rate: property = _steep.TrainingSession.__dict__["lr"]


class CallableSchedule:
    """Sets the learning rate of a session before each step.

    Args:
        function: returns the factor of the rate for a step, by the number of steps done before it:
            0 for the first.
        session: the session; its rate is the one that is multiplied.
        groups: options of the groups that have an optimizer of their own, by their index.
    """

    def __init__(
        self,
        function: RateFunction,
        session: _steep.TrainingSession,
        groups: dict[int, _steep.OptimizerOptions],
    ) -> None:
        self.base = session.lr
        self._function = function
        self._groups = {i: (options, options.lr) for i, options in groups.items()}

    def factor(self, step: int) -> float:
        """Return the factor of a step. Raises DataError: it is no finite number from 0."""
        value = self._function(step)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isfinite(number) and number >= 0:
            return number
        raise DataError(
            f"The schedule has no factor of the learning rate for step {step}.",
            node="schedule",
            expected="a finite number from 0",
            received=repr(value),
        )

    def apply(self, session: _steep.TrainingSession) -> None:
        """Set the rates of the session's next step."""
        self._set(session, self.factor(session.step_count))

    def remove(self, session: _steep.TrainingSession) -> None:
        """Set the rates of a session without this schedule."""
        self._set(session, 1.0)

    def _set(self, session: _steep.TrainingSession, factor: float) -> None:
        engine_rate.__set__(session, self.base * factor)
        for i, (options, rate) in self._groups.items():
            options.lr = rate * factor
            try:
                _steep.TrainingSession.set_group(session, i, options)
            finally:
                options.lr = rate  # it may be the caller's object

    def change_group(self, i: int, options: _steep.OptimizerOptions) -> None:
        """Record new options of a group."""
        self._groups[i] = (options, options.lr)


def take_function(settings: dict[str, Any]) -> RateFunction | None:
    """Take a schedule that is a function out of the keywords of a session; None if it is a name.

    Raises:
        ModelError: there are settings beside the function.
    """
    function = settings["schedule"]
    if not callable(function):
        return None
    others = [n for n in ("warmup_steps", "total_steps", "min_lr_ratio") if settings[n]]
    if others:
        raise ModelError(
            "A schedule that is a function has no other settings.",
            node="schedule",
            expected="a function alone",
            received=f"a function, and {', '.join(others)}",
            remedy="Compute the warm-up in the function.",
        )
    settings["schedule"] = "constant"
    rate: RateFunction = function
    return rate

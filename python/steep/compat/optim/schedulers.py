"""Learning rate schedules with a warm-up, for ``ORTTrainerOptions``."""

from __future__ import annotations

import math

from steep.compat.optim.step_info import StepInfo


class _LRScheduler:
    """A learning rate for each step; subclasses override ``get_lr``."""

    def __init__(self) -> None:
        self._last_lr: list[float] = []

    def get_lr(self, train_step_info: StepInfo) -> list[float]:
        """Return the rate of a step, as a list of one number.

        Args:
            train_step_info: a ``TrainStepInfo``: ``optimization_step``, from 0, and
                ``optimizer_config``, whose ``lr`` is the base rate.
        """
        raise NotImplementedError("get_lr")

    def get_last_lr(self) -> list[float]:
        """Return the result of ``get_lr`` for the last step; empty before the first."""
        return self._last_lr

    def _step(self, train_step_info: StepInfo) -> list[float]:
        self._last_lr = self.get_lr(train_step_info)
        return self._last_lr


class _Warmup(_LRScheduler):
    """The rate grows from 0 over a fraction of all steps; then ``_after`` computes it.

    Args:
        total_steps: number of steps of the training.
        warmup: fraction of them, in [0, 1).

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__()
        if not isinstance(total_steps, int) or total_steps < 1:
            raise ValueError(f"total_steps must be a number of at least 1, not {total_steps!r}")
        if not 0 <= warmup < 1:
            raise ValueError(f"warmup must be in [0, 1), not {warmup!r}")
        self.total_steps, self.warmup = total_steps, warmup
        self._warmup_steps = warmup * total_steps

    def get_lr(self, train_step_info: StepInfo) -> list[float]:
        """Return the rate of a step; see ``_LRScheduler``."""
        step, base = train_step_info.optimization_step, train_step_info.optimizer_config.lr
        if step < self._warmup_steps:
            return [base * step / max(1.0, self._warmup_steps)]
        rest = max(1.0, self.total_steps - self._warmup_steps)
        return [self._after((step - self._warmup_steps) / rest, base)]

    def _after(self, progress: float, base: float) -> float:
        """Return the rate after the warm-up; ``progress`` is the done fraction of later steps."""
        raise NotImplementedError("_after")


class ConstantWarmupLRScheduler(_Warmup):
    """After the warm-up, the base rate."""

    def _after(self, progress: float, base: float) -> float:
        return base


class CosineWarmupLRScheduler(_Warmup):
    """After the warm-up, cosine waves down from the base rate; by default half a wave, to 0.

    Args:
        total_steps, warmup: as for the other schedules.
        cycles: number of waves.
    """

    def __init__(self, total_steps: int, cycles: float = 0.5, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        if not cycles > 0:
            raise ValueError(f"cycles must be positive, not {cycles!r}")
        self.cycles = cycles

    def _after(self, progress: float, base: float) -> float:
        return base * max(0.0, (1 + math.cos(2 * math.pi * self.cycles * progress)) / 2)


class LinearWarmupLRScheduler(_Warmup):
    """After the warm-up, linear decay to 0."""

    def _after(self, progress: float, base: float) -> float:
        return base * max(0.0, 1 - progress)


class PolyWarmupLRScheduler(_Warmup):
    """After the warm-up, polynomial decay to ``lr_end``, which then stays.

    Args:
        total_steps, warmup: as for the other schedules.
        lr_end: the last rate, below the base rate.
        power: exponent of the polynomial.
    """

    def __init__(
        self, total_steps: int, lr_end: float = 1e-7, power: float = 1.0, warmup: float = 0.002
    ) -> None:
        super().__init__(total_steps, warmup)
        if not lr_end >= 0 or not power >= 0:
            raise ValueError(f"lr_end and power must be at least 0, not {lr_end!r}, {power!r}")
        self.lr_end, self.power = lr_end, power

    def _after(self, progress: float, base: float) -> float:
        if not base > self.lr_end:
            raise ValueError(f"the base rate {base} must be above lr_end {self.lr_end}")
        rest = max(0.0, 1 - progress)
        return self.lr_end + (base - self.lr_end) * math.pow(rest, self.power)

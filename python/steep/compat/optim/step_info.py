"""What scalers and schedules read of a trainer's ``TrainStepInfo``."""

from __future__ import annotations

from typing import Protocol


class Rate(Protocol):
    """A configuration of an optimizer.

    Attributes:
        lr: its base rate.
    """

    lr: float


class StepInfo(Protocol):
    """What is known of a training so far.

    Attributes:
        all_finite: whether the last update's gradients were.
        optimization_step: updates so far.
        optimizer_config: of the trainer.
    """

    all_finite: bool
    optimization_step: int

    @property
    def optimizer_config(self) -> Rate:
        """The configuration of the trainer's optimizer."""

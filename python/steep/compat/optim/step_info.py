"""The facts that scalers and schedules read from a trainer's ``TrainStepInfo``."""

from __future__ import annotations

from typing import Protocol


class Rate(Protocol):
    """An optimizer's configuration.

    Attributes:
        lr: its base learning rate.
    """

    lr: float


class StepInfo(Protocol):
    """The state of a training.

    Attributes:
        all_finite: whether the gradients of the last update were finite.
        optimization_step: number of updates so far.
        optimizer_config: the configuration of the trainer's optimizer.
    """

    all_finite: bool
    optimization_step: int

    @property
    def optimizer_config(self) -> Rate:
        """The configuration of the trainer's optimizer."""

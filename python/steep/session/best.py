"""The epoch of ``fit`` with the smallest validation loss, also of a run that goes on."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from functools import cached_property

from steep import _steep
from steep.session.batches import ArrayBatches, GivenBatches
from steep.session.history import Epoch
from steep.session.records import Loaded, best_path
from steep.session.team import Team, checksum

log = logging.getLogger("steep")

_COMPARED_ROWS = 64


class BestEpoch:
    """Compares epochs. Those before this call of ``fit`` have numbers below 1: 0 is the last one.

    Args:
        validation: the data of the validation loss.
        loss: name of the loss.

    Attributes:
        epoch: the best so far; None before the first with a validation loss that is a number.
    """

    def __init__(self, validation: ArrayBatches | GivenBatches | None, loss: str) -> None:
        self.epoch: Epoch | None = None
        self._validation, self._loss = validation, loss
        self._last = 0  # number of the last epoch that is complete
        self._state: _State | None = None

    @property
    def since(self) -> int:
        """The number of epochs after the best one."""
        return self._last - (0 if self.epoch is None else self.epoch.number)

    def compare(self, epoch: Epoch) -> bool:
        """Return whether an epoch, which is complete now, is the best so far."""
        self._last = epoch.number
        if epoch.validation_loss is None:
            return False
        before = None if self.epoch is None else self.epoch.validation_loss
        if not epoch.validation_loss < (math.inf if before is None else before):
            return False
        self.epoch = epoch
        return True

    def keep(self, session: _steep.TrainingSession) -> None:
        """Copy the state of a session, which is that of the best epoch."""
        self._state = _State(session)

    def restore(self, session: _steep.TrainingSession) -> None:
        """Bring back the state of the best epoch, if there is one that is not the present state."""
        if self._state is not None and self._state.step != session.step_count:
            self._state.restore(session)

    def record(self) -> dict[str, object]:
        """Return the best epoch for a checkpoint; {} without one."""
        epoch = self.epoch
        if epoch is None:
            return {}
        return {
            "since": self.since,
            "compared": self._compared,
            "step": epoch.step,
            "loss": _finite(epoch.loss),
            "validation_loss": _finite(epoch.validation_loss),
            "lr": _finite(epoch.lr),
            "metrics": {name: _finite(value) for name, value in epoch.metrics.items()},
        }

    def go_on_from(
        self,
        loaded: Loaded,
        session: _steep.TrainingSession,
        team: Team,
        load: Callable[[str], object] | None,
    ) -> None:
        """Go on from the best epoch of a loaded checkpoint, and copy its state.

        If its loss is one of other data, or its state is not beside the checkpoint, the next epoch
        is the first one, and a warning says so.

        Args:
            loaded: what the checkpoint says; the session has its state.
            session: its weights, statistics, moments and rate are left as they are.
            team: the processes, all of which read the same files.
            load: loads a checkpoint.

        Raises:
            CheckpointError: a checkpoint is damaged.
        """
        epoch, path = _epoch_of(loaded.best), best_path(loaded.path)
        if epoch is None or load is None or loaded.step != session.step_count:
            return
        why = ""
        if not isinstance(self._validation, ArrayBatches):
            why = "fit does not know whether the batches of the validation are the same"
        elif loaded.best.get("compared") != self._compared:
            why = "validation data or loss are others than in the checkpoint"
        elif not os.path.isdir(path):
            why = f"there is no {path}"
        if any(lost for (lost,) in team.gather("fit: best epoch", bool(why))):
            if team.rank == 0:
                log.warning(
                    "fit: the best epoch is sought anew: %s", why or "so in another process"
                )
            return
        rate, present = session.lr, _State(session)
        load(path)
        if session.step_count == epoch.step:
            self.epoch, self._state = epoch, _State(session)
        elif team.rank == 0:
            log.warning("fit: the best epoch is sought anew: %s is that of another run", path)
        load(loaded.path)  # what a copy does not have, such as the loss scale
        present.restore(session)
        session.lr = rate

    @cached_property
    def _compared(self) -> str:
        """Return what validation losses depend on, besides the weights."""
        data = self._validation
        if not isinstance(data, ArrayBatches):
            return self._loss
        return f"{self._loss} {data.count} {checksum(data, _COMPARED_ROWS)}"


class _State:
    """A copy of weights, statistics and moments.

    Attributes:
        step: count of steps.
    """

    def __init__(self, session: _steep.TrainingSession) -> None:
        self._weights: dict[str, object] = {**session.weights()}
        for name in session.statistic_names:
            self._weights[name] = _steep.Tensor(session.state(name).__dlpack__(copy=True))
        self._moments: dict[str, object] = {**session.optimizer_state()}
        self.step = session.step_count

    def restore(self, session: _steep.TrainingSession) -> None:
        """Bring it back."""
        session.set_weights(self._weights)
        session.set_optimizer_state(self._moments)  # averages, too, which set_weights restarted
        session.step_count = self.step


def _finite(value: float | None) -> float | None:
    """Return None for what JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def _epoch_of(record: Mapping[str, object]) -> Epoch | None:
    """Return the epoch of ``BestEpoch.record``; None if it is none."""
    since, step, metrics = (record.get(name) for name in ("since", "step", "metrics"))
    if not (isinstance(since, int) and isinstance(step, int) and isinstance(metrics, dict)):
        return None
    loss, validation_loss, lr = (_number(record.get(n)) for n in ("loss", "validation_loss", "lr"))
    if since < 0 or math.isnan(validation_loss):
        return None
    values = {str(name): _number(value) for name, value in metrics.items()}
    return Epoch(-since, step, loss, validation_loss, values, lr, math.nan)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan

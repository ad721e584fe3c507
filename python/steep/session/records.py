"""What ``fit`` writes while it trains: a CSV file, TensorBoard's files, checkpoints."""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from steep import _steep
from steep.errors import DataError, IoError
from steep.inspection import StrPath

if TYPE_CHECKING:
    from steep.session.history import Epoch

log = logging.getLogger("steep")


@dataclass
class Mean:
    """A weighted mean of losses."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float) -> None:
        """Add a loss, unless its weight is 0."""
        if weight > 0:
            self.total += value * weight
            self.weight += weight

    @property
    def value(self) -> float:
        """The mean; NaN of nothing."""
        return self.total / self.weight if self.weight else math.nan


@dataclass
class Position:
    """How much of an epoch is done.

    Attributes:
        began: count of steps at its begin, on which the order of its rows depends.
        step: count of steps now.
        rows: number of rows of the data; 0 if the caller makes the batches.
        batches: number of batches that are done.
        mean: of the losses of their steps.
        lr: learning rate of the last step; NaN before the first.
    """

    began: int
    step: int
    rows: int
    batches: int = 0
    mean: Mean = field(default_factory=Mean)
    lr: float = math.nan


@dataclass(frozen=True)
class Loaded:
    """What a loaded checkpoint says of the ``fit`` that wrote it.

    Attributes:
        run: settings, which are numbers.
        position: where the epoch stands; None after a whole epoch, and of data that are not fit's.
        best: the best epoch, as ``BestEpoch.record`` returns it; {} without one.
        step: count of steps in the checkpoint.
        path: of the checkpoint.
    """

    run: Mapping[str, object] = field(default_factory=dict)
    position: Position | None = None
    best: Mapping[str, object] = field(default_factory=dict)
    step: int = 0
    path: str = ""


def text_of_run(
    run: Mapping[str, object], position: Position | None, best: Mapping[str, object]
) -> str:
    """Return what ``loaded_from`` reads, as the user's data of a checkpoint."""
    data: dict[str, object] = {"fit": run}
    if position is not None and position.batches > 0:
        p, mean = position, position.mean
        at = {"began": p.began, "step": p.step, "rows": p.rows, "batches": p.batches}
        data["epoch"] = at | {"loss": mean.total, "weight": mean.weight, "lr": p.lr}
    if best:
        data["best"] = best
    return json.dumps(data)


def loaded_from(user: str, step: int, path: StrPath) -> Loaded:
    """Return what the user's data of a checkpoint say of a ``fit``; nothing if they are not its."""
    data = json.loads(user)
    run = data.get("fit") if isinstance(data, dict) else None
    if not isinstance(run, dict):
        return Loaded()
    settings = {name: value for name, value in run.items() if isinstance(value, int)}
    best = data.get("best")
    position = _position_of(data.get("epoch"))
    return Loaded(settings, position, best if isinstance(best, dict) else {}, step, os.fspath(path))


def _position_of(at: object) -> Position | None:
    if not isinstance(at, dict):
        return None
    counts = [at.get(name) for name in ("began", "step", "rows", "batches")]
    sums = [at.get(name) for name in ("loss", "weight", "lr")]
    began, step, rows, batches = (n if isinstance(n, int) else -1 for n in counts)
    total, weight, lr = (float(x) if isinstance(x, float | int) else math.nan for x in sums)
    if min(began, step, rows, batches) < 0 or math.isnan(total + weight + lr):
        return None
    return Position(began, step, rows, batches, Mean(total, weight), lr)


def changed(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return "batch 8 → 16, accumulate 1 → 2": the settings that both have and that differ."""
    both = (name for name in before if name in now and before[name] != now[name])
    return ", ".join(f"{name} {before[name]} → {now[name]}" for name in both)


class Curves:
    """Losses, rates and metrics of each step and epoch, as ``steep train`` writes them.

    A file that cannot be written any more ends early, with a warning: the training goes on.

    Args:
        metrics_file: path of a CSV file with a row for each step; None for none.
        tensorboard: folder of files for TensorBoard; None for none.
        step: number of steps that were done before.

    Raises:
        IoError: a file cannot be made.
    """

    def __init__(
        self, metrics_file: StrPath | None, tensorboard: StrPath | None, step: int
    ) -> None:
        self._rows = None if metrics_file is None else _steep.StepTable(metrics_file, step)
        self._events = None if tensorboard is None else _steep.EventFile(tensorboard, step)

    def add_step(self, result: _steep.StepResult, epoch: int) -> None:
        """Record an update of the weights."""
        rows, norm = self._rows, result.grad_norm
        if result.skipped:
            return
        if rows is not None and not _still(
            lambda: rows.add(result.step, epoch, result.loss, result.lr, norm)
        ):
            self._rows = None
        more = {"grad_norm": norm} if norm else {}
        self._add(result.step, {"loss/step": result.loss, "lr": result.lr, **more})

    def add_epoch(self, epoch: Epoch) -> None:
        """Record the means of an epoch."""
        values = {"loss/epoch": epoch.loss}
        if epoch.validation_loss is not None:
            values["loss/validation"] = epoch.validation_loss
        values |= {f"validation/{name}": value for name, value in epoch.metrics.items()}
        self._add(epoch.step, values)

    def _add(self, step: int, values: dict[str, float]) -> None:
        events = self._events
        if events is None:
            return

        def add() -> None:
            for tag, value in values.items():
                events.add(tag, step, value)

        if not _still(add):
            self._events = None


class Checkpoints:
    """The checkpoints of a run, at the places where ``steep train`` writes them.

    Args:
        save: writes a checkpoint to a path.
        path: the folder; None for none.
        every: save also after this number of steps; None for epochs only.

    Raises:
        DataError: ``every`` is given without ``path``.
    """

    def __init__(
        self, save: Callable[[StrPath], None], path: StrPath | None, every: int | None
    ) -> None:
        if every is not None and path is None:
            raise DataError(
                "checkpoint_every needs a folder.",
                node="checkpoint_every",
                expected="checkpoint=FOLDER",
            )
        self._save, self._path, self._every = save, path, every

    def after_step(self, step: int) -> None:
        """Save if it is time to. Raises IoError."""
        if self._every is not None and step % self._every == 0:
            self.save()

    def save(self) -> None:
        """Save the present state. Raises IoError."""
        if self._path is not None:
            self._save(self._path)

    def save_best(self) -> None:
        """Save the best epoch's state beside the last one's. Raises IoError."""
        if self._path is not None:
            self._save(best_path(self._path))


def best_path(path: StrPath) -> str:
    """Return CHECKPOINT.best, where the best epoch's state is beside CHECKPOINT."""
    return os.fspath(path).rstrip(os.sep) + ".best"


def require_place(path: StrPath) -> None:
    """Check before the first step that a checkpoint can be made at ``path``. Raises IoError."""
    _steep.check_checkpoint_destination(path)
    place = Path(path).absolute()
    folder = next(folder for folder in place.parents if folder.is_dir())
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            pass
    except OSError as error:
        raise IoError(
            "A checkpoint cannot be made there.", node=os.fspath(path), received=str(error)
        ) from error


def _still(write: Callable[[], None]) -> bool:
    """Write to a file; return whether that worked, and warn otherwise."""
    try:
        write()
    except IoError as error:
        log.warning("fit: %s; the training goes on without this file", error)
        return False
    return True

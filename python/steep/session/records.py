"""What ``fit`` writes while it trains: a CSV file, TensorBoard's files, checkpoints."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from steep import _steep
from steep.errors import DataError, IoError
from steep.inspection import StrPath

if TYPE_CHECKING:
    from steep.session.history import Epoch

log = logging.getLogger("steep")


def text_of_run(run: Mapping[str, object]) -> str:
    """Return settings of ``fit`` as the user's data of its checkpoints."""
    return json.dumps({"fit": run})


def run_of(user: str) -> dict[str, object]:
    """Return the settings of ``fit``, which are numbers, from a checkpoint's data of the user."""
    data = json.loads(user)
    run = data.get("fit") if isinstance(data, dict) else None
    if not isinstance(run, dict):
        return {}
    return {name: value for name, value in run.items() if isinstance(value, int)}


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
        """Save the best epoch's state beside the last one's, to CHECKPOINT.best. Raises IoError."""
        if self._path is not None:
            self._save(os.fspath(self._path).rstrip(os.sep) + ".best")


def require_place(path: StrPath) -> None:
    """Check before the first step that a checkpoint can be made at ``path``. Raises IoError."""
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

"""What ``TrainingSession.fit`` returns, by epochs; imported without NumPy."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, field

from steep.errors import IoError


@dataclass(frozen=True)
class Epoch:
    """What one epoch of ``TrainingSession.fit`` did.

    Attributes:
        number: 1 for the first epoch of this call. ``History.best`` may be of an earlier one, whose
            last epoch has the number 0.
        step: number of steps that the session has done.
        loss: mean of the steps' losses over the labels; skipped steps do not count.
        validation_loss: mean over the validation data after the epoch; None without such data.
        metrics: values by name, on the validation data.
        lr: learning rate of the last step.
        seconds: duration, with validation.
    """

    number: int
    step: int
    loss: float
    validation_loss: float | None
    metrics: dict[str, float]
    lr: float
    seconds: float


@dataclass
class History:
    """What ``TrainingSession.fit`` returns.

    Attributes:
        epochs: an ``Epoch`` for each epoch that is complete.
        best: the epoch with the smallest validation loss; None without validation data. After
            ``load_checkpoint``, with ``patience`` or ``restore_best``, also one before the
            checkpoint.
        stopped_by: "epochs", "patience" or "callback".
    """

    epochs: list[Epoch] = field(default_factory=list)
    best: Epoch | None = None
    stopped_by: str = "epochs"

    @property
    def losses(self) -> list[float]:
        """The training loss of each epoch."""
        return [e.loss for e in self.epochs]

    @property
    def validation_losses(self) -> list[float]:
        """The validation loss of each epoch; empty without validation data."""
        return [e.validation_loss for e in self.epochs if e.validation_loss is not None]

    def save_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a row for each epoch, for ``steep plot`` and spreadsheets.

        Raises:
            IoError: the file cannot be written.
        """
        names = list(self.epochs[0].metrics) if self.epochs else []
        validated = any(e.validation_loss is not None for e in self.epochs)
        head = ["step", "epoch", "loss", *(["validation_loss"] if validated else []), "lr", *names]
        try:
            with open(path, "w", newline="", encoding="utf-8") as file:
                rows = csv.writer(file)
                rows.writerow(head)
                for e in self.epochs:
                    values = {"step": e.step, "epoch": e.number, "loss": e.loss, "lr": e.lr}
                    more = {"validation_loss": e.validation_loss, **e.metrics}
                    rows.writerow([{**more, **values}[name] for name in head])
        except OSError as error:
            raise IoError(
                "The history cannot be written.", node=os.fspath(path), received=str(error)
            ) from error

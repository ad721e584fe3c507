"""``TrainingSession.fit``: epochs of steps, with validation, early stopping and callbacks."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from steep import _steep
from steep.errors import DataError, counted
from steep.inspection import StrPath
from steep.session.batches import ArrayBatches, Data, GivenBatches, Rows, batches_of, fixed_rows
from steep.session.best import BestEpoch
from steep.session.history import Epoch, History
from steep.session.images import ImageFolder
from steep.session.metrics import Array, LossOfSession, Metric, Metrics, as_array, metrics_of
from steep.session.records import (
    Checkpoints,
    Curves,
    Loaded,
    Mean,
    Position,
    best_path,
    changed,
    require_place,
    text_of_run,
)
from steep.session.team import Team

log = logging.getLogger("steep")

_ROWS = 32  # of a batch, unless the caller or the model says
_PROGRESS_AFTER = 2.0  # seconds


EpochCallback = Callable[[Epoch], object]
StepCallback = Callable[[_steep.StepResult], object]


@dataclass(frozen=True)
class FitOptions:
    """The keywords of ``TrainingSession.fit``."""

    epochs: int
    batch: int | None
    accumulate: int
    validation: Data | float | None
    shuffle: bool
    seed: int
    metrics: Metrics
    callbacks: Sequence[EpochCallback]
    step_callbacks: Sequence[StepCallback]
    patience: int | None
    restore_best: bool
    progress: bool
    drop_last: bool = False
    checkpoint: StrPath | None = None
    checkpoint_every: int | None = None
    metrics_file: StrPath | None = None
    tensorboard: StrPath | None = None
    loaded: Loaded = field(default_factory=Loaded)
    load: Callable[[str], object] | None = None  # a checkpoint into the session, quietly


def fit(
    session: _steep.TrainingSession,
    team: Team,
    of: LossOfSession,
    data: Data,
    options: FitOptions,
) -> History:
    """Train a session. See ``TrainingSession.fit``, which tells ``team`` of errors."""
    return _Fit(session, team, of, data, options).run()


class _Fit:
    def __init__(
        self,
        session: _steep.TrainingSession,
        team: Team,
        of: LossOfSession,
        data: Data,
        options: FitOptions,
    ) -> None:
        _check(options)
        self._session, self._team, self._of, self._options = session, team, of, options
        self._label = of.label if of.loss else ""
        self._metrics = metrics_of(options.metrics, of)
        self._at = _scored_output(session, of) if self._metrics else 0
        fixed = fixed_rows(session.input_info())
        if fixed is not None and options.batch not in (None, fixed):
            raise DataError(
                "The model fixes the number of rows of a batch.",
                node="batch",
                expected=f"{fixed}, or no value",
                received=str(options.batch),
                remedy=session.batch_note,
            )
        team.require_divisible(fixed)
        if waiting := team.waiting(session):
            raise DataError(
                "Accumulated gradients wait to be applied.",
                expected="none before fit",
                received=f"those of {counted(waiting, 'part')}",
                remedy="Call apply_gradients() or drop_gradients().",
            )
        size = options.batch or fixed or _ROWS
        self._fixed = fixed is not None
        classes = data.classes if isinstance(data, ImageFolder) else []
        data = self._arrays_of(data)
        _refuse_list_of_arrays(data, len(session.input_info()))
        self._training = batches_of(data, size, self._fixed or options.drop_last, "data")
        if options.drop_last and isinstance(self._training, GivenBatches):
            raise DataError(
                "drop_last is for arrays, which fit cuts into batches.",
                node="drop_last",
                expected="data as a dict or tuple of arrays",
                received="batches",
            )
        share = options.validation if isinstance(options.validation, float) else None
        team.require_same(
            self._training,
            f"batch {size}, seed {options.seed}, shuffle {options.shuffle}, validation {share}, "
            f"accumulate {options.accumulate}, epochs {options.epochs}, step {session.step_count}, "
            f"epoch {options.loaded.position}",
        )
        self._validation = self._validation_of(size, classes)
        cuts = any(isinstance(d, ArrayBatches) for d in (self._training, self._validation))
        if options.batch is not None and not cuts:
            raise DataError(
                "batch is for arrays, which fit cuts into batches.",
                node="batch",
                expected="data as a dict or tuple of arrays",
                received="batches",
            )
        for batches in (self._training, self._validation):
            if isinstance(batches, GivenBatches) and batches.once and options.epochs > 1:
                raise DataError(
                    "These batches can be iterated only once.",
                    expected="a list, a DataLoader, or an object whose __iter__ starts anew",
                    received=f"an iterator, and epochs={options.epochs}",
                    remedy="For data that are made on the way, give a class with __iter__.",
                )
            if batches is not None and batches.left_out and self._fixed:
                log.warning(
                    "fit: the model fixes batches of %d rows; %d rows of each pass are left out",
                    size,
                    batches.left_out,
                )
        leads = team.rank == 0
        run = self._run_settings(size)
        changes = changed(options.loaded.run, run)
        if leads and changes:
            log.warning("fit: options are others than in the checkpoint: %s", changes)
        self._position = self._position_from(options.loaded.position, changes)
        self._best = BestEpoch(self._validation, of.loss)
        self._keeps_best = bool(options.patience or options.restore_best)
        if self._keeps_best:
            self._best.go_on_from(options.loaded, session, team, options.load)
        self._checkpoints = Checkpoints(
            lambda path: session.save_checkpoint(path, self._text_of(run)),
            options.checkpoint,
            options.checkpoint_every,
        )
        if leads and options.checkpoint is not None:
            require_place(options.checkpoint)
            if self._keeps_best:
                require_place(best_path(options.checkpoint))
        self._curves = Curves(
            options.metrics_file if leads else None,
            options.tensorboard if leads else None,
            session.step_count,
        )

    def _run_settings(self, size: int) -> dict[str, object]:
        """Return what decides which rows a step reads; checkpoints record it."""
        options = self._options
        run: dict[str, object] = {"accumulate": int(options.accumulate)}
        if isinstance(self._training, ArrayBatches):
            run |= {
                "batch": int(size),
                "drop_last": bool(options.drop_last),
                "shuffle": bool(options.shuffle),
            }
            if options.shuffle:
                run["seed"] = int(options.seed)
        return run

    def _text_of(self, run: Mapping[str, object]) -> str:
        return text_of_run(run, self._position, self._best.record() if self._keeps_best else {})

    def _position_from(self, loaded: Position | None, changes: str) -> Position | None:
        """Return where the first epoch goes on; None if it is a new one."""
        if loaded is None or loaded.step != self._session.step_count:
            return None
        rows = self._training.count or 0
        if rows != loaded.rows:
            why = f"there are {rows or 'no'} rows of arrays, and {loaded.rows or 'no'} before"
        elif rows == 0:
            why = "fit does not know the order of batches that it is given"
        elif changes:
            why = "these options change its batches"
        else:
            return loaded
        if self._team.rank == 0:
            log.warning("fit: the epoch in which the checkpoint was saved begins anew: %s", why)
        return None

    def _arrays_of(self, data: Data, classes: Sequence[str] = ()) -> Data:
        """Return the arrays of images; other data as they are."""
        if not isinstance(data, ImageFolder):
            return data
        return data.arrays(self._session.input_info(), self._label, classes)

    def _validation_of(
        self, size: int, classes: Sequence[str]
    ) -> ArrayBatches | GivenBatches | None:
        options = self._options
        given = options.validation
        if given is None:
            for name, value in (
                ("patience", options.patience),
                ("restore_best", options.restore_best),
                ("metrics", self._metrics),
            ):
                if value:
                    raise DataError(
                        f"{name} needs validation data.",
                        node=name,
                        expected="validation=(x, y), batches, or a part of the rows such as 0.1",
                    )
            return None
        if not isinstance(given, (int, float, np.number)):
            return batches_of(self._arrays_of(given, classes), size, self._fixed, "validation")
        if not isinstance(self._training, ArrayBatches):
            raise DataError(
                "Only arrays can be split.",
                node="validation",
                expected="data as a dict or tuple of arrays, or validation data of their own",
                received="batches",
            )
        order = None
        if options.shuffle:
            order = np.random.default_rng(options.seed).permutation(self._training.count)
        self._training, validation = self._training.split(float(given), order, self._fixed)
        return validation

    def run(self) -> History:
        history = History()
        shown = self._options.progress and self._team.rank == 0
        with _CtrlC() as ctrl_c, _Progress(self._steps(), shown) as progress:
            for number in range(1, self._options.epochs + 1):
                epoch = self._epoch(number, ctrl_c, progress)
                if epoch is None:  # a callback ended it
                    history.stopped_by = "callback"
                    break
                history.epochs.append(epoch)
                self._curves.add_epoch(epoch)
                self._compare(history, epoch)
                self._checkpoints.save()
                progress.say(epoch)
                log.info("%s", _text_of(epoch))
                if self._stops(self._options.callbacks, epoch, ctrl_c):
                    history.stopped_by = "callback"
                    break
                if self._options.patience and self._best.since >= self._options.patience:
                    history.stopped_by = "patience"
                    break
        if self._options.restore_best:
            self._best.restore(self._session)
        return history

    def _steps(self) -> int | None:
        done = 0 if self._position is None else self._position.batches
        return len(self._training) * self._options.epochs - done or None

    def _epoch(self, number: int, ctrl_c: _CtrlC, progress: _Progress) -> Epoch | None:
        began = time.perf_counter()
        session = self._session
        if self._position is None:
            step = session.step_count
            self._position = Position(step, step, self._training.count or 0)
        position = self._position
        for result in self._updates(position, progress):
            position.lr = result.lr
            self._curves.add_step(result, number)
            if not result.skipped:
                self._checkpoints.after_step(result.step)
            if self._stops(self._options.step_callbacks, result, ctrl_c):
                return None
        loss, values = self._validate(ctrl_c)
        if loss is not None:  # every process compares the same loss
            loss = self._team.gather("fit: validation", loss)[0][0]
        self._position = None  # from here on, a checkpoint is one of a whole epoch
        seconds = time.perf_counter() - began
        mean, lr = position.mean.value, position.lr
        return Epoch(number, session.step_count, mean, loss, values, lr, seconds)

    def _updates(self, position: Position, progress: _Progress) -> Iterator[_steep.StepResult]:
        """Run the other steps of an epoch; yield the result of each update of the weights."""
        session, team, every = self._session, self._team, self._options.accumulate
        done = position.batches
        batches = self._training.batches(self._order(position.began), team.rank, team.size, done)
        waiting = 0  # rows, or elements of labels, whose gradients wait

        def counted(result: _steep.StepResult, weight: int) -> _steep.StepResult:
            position.batches, position.step = number, session.step_count
            if not result.skipped:
                position.mean.add(result.loss, weight)
            return result

        number = done
        with team.dropping(session):
            for number, batch in enumerate(batches, done + 1):
                progress.step()
                weight = batch.rows or _size(batch.label(self._label))
                if every == 1:
                    yield counted(session.step(*batch.ordered, **batch.named), weight)
                    continue
                team.add_part(session, batch)
                waiting += weight
                if number % every == 0 and team.waiting(session):
                    yield counted(session.apply_gradients(), waiting)
                    waiting = 0
            if team.waiting(session):
                yield counted(session.apply_gradients(), waiting)

    def _stops(
        self, callbacks: Sequence[Callable[[Any], object]], event: object, ctrl_c: _CtrlC
    ) -> bool:
        """Call all callbacks; return whether one returned True in any process.

        Raises KeyboardInterrupt if there was a Ctrl-C in any process.
        """
        every = self._team.gather("fit: callbacks", _any_stops(callbacks, event), ctrl_c.pending)
        if any(pending for _, pending in every):
            self._checkpoints.save()
            raise KeyboardInterrupt
        return any(stop for stop, _ in every)

    def _order(self, step: int) -> Rows | None:
        """Return an order that depends on the seed and the step, so that a run can be resumed."""
        if not self._options.shuffle or not isinstance(self._training, ArrayBatches):
            return None
        random = np.random.default_rng([self._options.seed, step])
        return random.permutation(self._training.count)

    def _validate(self, ctrl_c: _CtrlC) -> tuple[float | None, dict[str, float]]:
        if self._validation is None:
            return None, {}
        mean = Mean()
        predictions: list[Array] = []
        labels: list[Array] = []
        for batch in self._validation.batches():
            result = self._session.eval(*batch.ordered, **batch.named)
            label = batch.label(self._label)
            if result.loss is None:
                raise DataError(
                    "Validation data have no labels.",
                    node="validation",
                    expected=f"an array for '{self._label}'",
                )
            mean.add(result.loss, _size(label) if result.weight is None else result.weight)
            if self._metrics:
                predictions.append(as_array(result.outputs[self._at]))
                labels.append(as_array(label))
            if self._team.size == 1 and ctrl_c.pending:  # else all end together, after the epoch
                self._checkpoints.save()
                raise KeyboardInterrupt
        if not self._metrics:
            return mean.value, {}
        y, label = _joined(predictions), _joined(labels)
        return mean.value, {n: _value(n, metric, y, label) for n, metric in self._metrics.items()}

    def _compare(self, history: History, epoch: Epoch) -> None:
        if self._best.compare(epoch):
            if self._options.restore_best:
                self._best.keep(self._session)
            if self._keeps_best:
                self._checkpoints.save_best()
        history.best = self._best.epoch


class _CtrlC:
    """Delays Ctrl-C until a step is complete; a second one is raised at once.

    If the program has a handler of its own, or in another thread, it does nothing.
    """

    def __init__(self) -> None:
        self.pending = False
        self._replaced = False

    def __enter__(self) -> _CtrlC:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._receive)
            self._replaced = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._replaced:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if error is None:
            self.check()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True

    def check(self) -> None:
        if self.pending:
            raise KeyboardInterrupt


class _Progress:
    """A progress bar, if ``tqdm`` is installed and the run takes longer than two seconds."""

    def __init__(self, steps: int | None, shown: bool) -> None:
        self._bar: Any = None
        if not shown:
            return
        try:
            from tqdm import tqdm
        except ImportError:
            return
        self._bar = tqdm(total=steps, unit="step", delay=_PROGRESS_AFTER, leave=False, disable=None)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def say(self, epoch: Epoch) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(_text_of(epoch), refresh=False)


def _text_of(epoch: Epoch) -> str:
    parts = [f"epoch {epoch.number}: loss {epoch.loss:.6g}"]
    if epoch.validation_loss is not None:
        parts.append(f"validation {epoch.validation_loss:.6g}")
    return ", ".join([*parts, *(f"{name} {value:.6g}" for name, value in epoch.metrics.items())])


def _check(options: FitOptions) -> None:
    for name, value in (
        ("epochs", options.epochs),
        ("batch", options.batch),
        ("accumulate", options.accumulate),
        ("patience", options.patience),
        ("checkpoint_every", options.checkpoint_every),
    ):
        if value is None and name not in ("epochs", "accumulate"):
            continue
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value is None or value < 1:
            raise DataError(
                f"{name} is not a number of 1 or more.",
                node=name,
                expected="a whole number from 1",
                received=repr(value),
            )
    for name, path in (
        ("checkpoint", options.checkpoint),
        ("metrics_file", options.metrics_file),
        ("tensorboard", options.tensorboard),
    ):
        if path is not None and not os.fspath(path):
            raise DataError(
                f"{name} has no name.", node=name, expected="a path, or None", received="''"
            )
    if not isinstance(options.seed, (int, np.integer)) or options.seed < 0:
        raise DataError(
            "seed is not a number of 0 or more.",
            node="seed",
            expected="a whole number from 0",
            received=repr(options.seed),
        )
    for name, functions in (
        ("callbacks", options.callbacks),
        ("step_callbacks", options.step_callbacks),
    ):
        if not isinstance(functions, Sequence) or not all(callable(f) for f in functions):
            raise DataError(
                f"{name} is a list of functions.",
                node=name,
                expected="functions of one argument, which return True to stop",
                received=repr(functions),
            )


def _refuse_list_of_arrays(data: Data, inputs: int) -> None:
    """Refuse [x, y], where (x, y) is meant."""
    if isinstance(data, list) and inputs > 1 and any(hasattr(item, "shape") for item in data):
        raise DataError(
            "A list has batches, and one of these is a single array.",
            node="data",
            expected=f"batches of {counted(inputs, 'array')}",
            received="an array",
            remedy="Give the arrays of all rows as a tuple: (x, y).",
        )


def _scored_output(session: _steep.TrainingSession, of: LossOfSession) -> int:
    """Return the index of the output that the loss reads among a session's outputs."""
    names = [info.name for info in session.output_info()]
    name = of.output or ("loss" if len(names) > 1 else names[0])
    if name not in names:
        raise DataError(
            "Metrics need the output that the loss reads.", node="output", expected=", ".join(names)
        )
    return names.index(name)


def _any_stops(callbacks: Sequence[Callable[[Any], object]], event: object) -> bool:
    """Call all callbacks, and return whether one returned True."""
    answers = [callback(event) for callback in callbacks]
    return any(isinstance(answer, (bool, np.bool_)) and bool(answer) for answer in answers)


def _joined(parts: Sequence[Array]) -> Array:
    """Concatenate arrays of batches. Axes whose extents differ, such as lengths, become rows."""
    shape = list(parts[0].shape[1:])
    for part in parts:
        while shape and (len(shape) >= part.ndim or part.shape[-len(shape) :] != tuple(shape)):
            shape.pop(0)
    if any(part.ndim != len(shape) + 1 for part in parts):
        parts = [part.reshape(-1, *shape) for part in parts]
    return np.concatenate(parts)


def _value(name: str, metric: Metric, y: Array, label: Array) -> float:
    value = metric(y, label)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            "A metric must return a number.", node=name, expected="a number", received=repr(value)
        ) from error


def _size(array: object) -> int:
    shape = getattr(array, "shape", None)
    return int(np.prod(np.shape(array) if shape is None else tuple(shape), dtype=np.int64))  # type: ignore[call-overload]

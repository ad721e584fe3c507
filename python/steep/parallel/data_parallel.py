"""A trainer's part of a training in which each process has its own rows; all update alike.

A step is two small exchanges around forward and backward, then one sum of the gradients::

    open        check: same model and call everywhere; copy rank 0's weights if some are new
    accumulate  forward and backward of this process's rows; gradients stay in the session
    close       check: every process has its gradients; exchange their weights in the mean
    sum         the mean of the gradients over all rows, in buckets
    apply       clipping and update, which are the same everywhere

All processes learn of an error of one before any weight changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch

from steep import _steep, errors, extension
from steep.errors import DataError, ModelError, ProviderError
from steep.parallel.peers import Peers, connect

log = logging.getLogger("steep")

_WORD = 1 << 32  # two 32-bit halves are exact in two float64; a 64-bit number is not exact in one
_CALLS = ("step()", "apply_gradients()")  # the calls that begin with the exchanges open and close


@dataclasses.dataclass
class _StepHeader:
    """The values that a process sends before a step: numbers that float64 represents exactly."""

    call: float = 0  # index into _CALLS
    failed: float = 0
    digest: float = 0  # digest of model and options
    digest_low: float = 0
    fresh: float = 0  # whether its state changed other than by steps
    step_count: float = 0
    run_count: float = 0
    loss_scale: float = 0
    seed: float = 0
    seed_low: float = 0


@dataclasses.dataclass
class _StepSummary:
    """The values that a process sends once its gradients are accumulated."""

    call: float = 1
    failed: float = 0
    skipped: float = 0  # gradients overflowed at this loss scale
    weight: float = 0  # weight of its gradients: rows, or labels that are not ignored
    weighs: float = 0  # whether the sums are already multiplied by the weight
    loss: float = 0
    step_count: float = 0
    run_count: float = 0
    loss_scale: float = 0
    settings: float = 0  # digest of this step's update settings
    settings_low: float = 0
    form: float = 0  # digest of a row's shape
    form_low: float = 0


class DataParallel:
    """This process's part of a training in which each process has its own session.

    Attributes:
        descriptions: facts that must be the same everywhere, by name, for messages.
        settings: settings of the next step's update, which must be the same everywhere.
        others: tensors outside of the session, which start with rank 0's values.
        count_and_form: for the next step, the number of elements in the mean and the shape of a row
            as text.
    """

    def __init__(self) -> None:
        self.descriptions: dict[str, str] = {}
        self.settings = ""
        self.others: Sequence[torch.Tensor] = ()
        self.count_and_form = (0.0, "")
        self._peers: Peers = connect()
        self._lock = threading.RLock()
        self._fresh = True
        self._digest = (0.0, 0.0)  # digest of described
        self._opened = False
        self._exchanges = 0
        self._forget()

    def describe(self, session: _steep.TrainingSession, _: str | bytes) -> None:
        """Record a new session, for comparison with the other processes.

        The trainer has put the model and the options into ``descriptions``.
        """
        parameters = {}
        for name in session.parameter_names:
            tensor = _tensor(session.state(name))
            parameters[name] = f"{tensor.dtype} {list(tensor.shape)}"
        self.descriptions = {
            k: v for k, v in self.descriptions.items() if not k.startswith("parameter ")
        }
        self.descriptions |= {f"parameter {name}": text for name, text in parameters.items()}
        self.descriptions["moments"] = str(sorted(session.optimizer_state_names))
        self.descriptions["statistics"] = str(sorted(session.statistic_names))
        self._digest = _digest(json.dumps(self.descriptions, sort_keys=True))

    def warn_of_statistics(self) -> None:
        """Warn that a batch normalisation sees the rows of one process only."""
        if self.rank == 0:
            log.warning(
                "batch normalisation: each process normalises its own rows, and running statistics "
                "are those of rank 0, as with DistributedDataParallel; results differ from those "
                "of one process with all rows"
            )

    @property
    def rank(self) -> int:
        """Number of this process; rank 0 writes files."""
        return self._peers.rank

    def refresh(self) -> None:
        """Copy rank 0's state to all before the next step: this process's state has changed."""
        self._fresh = True

    def drop(self) -> None:
        """Discard accumulated gradients; all processes must do so."""
        with self._lock:
            self._opened = False
            self._forget()

    def step(
        self,
        session: _steep.TrainingSession,
        *arrays: object,
        accumulate: bool = False,
        **kwargs: object,
    ) -> _steep.StepResult:
        """Run one step on the rows of all processes; see ``TrainingSession.step``."""
        with self._lock:
            if not accumulate and self._parts:
                raise DataError(
                    "step() was called while accumulated gradients wait to be applied.",
                    expected="no accumulated gradients",
                    received=f"those of {self._parts} parts",
                    remedy="Call apply_gradients(), or drop_gradients().",
                )
            if not self._opened:
                self._open(session)
            try:
                part = self._part(session, arrays, kwargs)
            except Exception as error:
                if accumulate:  # the other processes learn of it when they apply
                    raise
                self._close(session, error)
                raise
            if accumulate:
                return part
            return self._finish(session, part.outputs)

    def apply_gradients(self, session: _steep.TrainingSession) -> _steep.StepResult:
        """Update by the gradients of all processes; see ``TrainingSession.apply_gradients``."""
        with self._lock:
            if not self._parts:
                return _steep.TrainingSession.apply_gradients(session)  # raises
            return self._finish(session, [])

    def loaded(self) -> None:
        """Discard accumulated gradients, and refresh: the session has loaded a checkpoint."""
        self.drop()
        self.refresh()

    def save_checkpoint(
        self, session: _steep.TrainingSession, path: str | os.PathLike[str], user: str
    ) -> None:
        """Write a checkpoint, by rank 0."""
        if self.rank == 0:
            _steep.TrainingSession.save_checkpoint(session, path, user)

    @contextlib.contextmanager
    def agree(self, applies: _steep.TrainingSession | None = None) -> Iterator[None]:
        """Tell the other processes of an error in the ``with`` block before the session's step.

        Args:
            applies: the session, if the block applies accumulated gradients. If the block adds a
                part of them, the others learn of an error when they apply.
        """
        with self._lock:
            before = self._exchanges
            try:
                yield
            except Exception as error:
                if self._exchanges == before and not self._opened:
                    self._say(_StepHeader(failed=1), error)
                elif self._exchanges == before and applies is not None:
                    self._close(applies, error)
                raise

    # --- the parts of a step ----------------------------------------------------------------------

    def _open(self, session: _steep.TrainingSession) -> None:
        digest, digest_low = self._digest
        own = _StepHeader(
            digest=digest,
            digest_low=digest_low,
            fresh=self._fresh,
            step_count=session.step_count,
            run_count=session.run_count,
            loss_scale=session.loss_scale,
            seed=session.seed // _WORD,
            seed_low=session.seed % _WORD,
        )
        every = self._say(own)
        first = every[0]
        if any((o.digest, o.digest_low) != (digest, digest_low) for o in every):
            self._explain_difference()
        if any(o.fresh for o in every):
            self._peers.copy_from(0, [*_states(session), *self.others])
            session.step_count = int(first.step_count)
            session.run_count = int(first.run_count)
            self._fresh = False
        if first.loss_scale != session.loss_scale:
            session.loss_scale = first.loss_scale
        self._seed = int(first.seed) * _WORD + int(first.seed_low)
        session.set_seed(self._seed)
        self._opened = True
        self._runs, self._loss_scale = session.run_count, session.loss_scale
        self._old_statistics = {
            n: _tensor(session.state(n)).clone() for n in session.statistic_names
        }

    def _part(
        self,
        session: _steep.TrainingSession,
        arrays: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> _steep.StepResult:
        rows, self._form = self.count_and_form
        # In a step each process has its own seed; between steps all have the same.
        session.set_seed((self._seed + self.rank) % 2**64)
        try:
            result = _steep.TrainingSession.step(session, *arrays, accumulate=True, **kwargs)
        finally:
            session.set_seed(self._seed)
        self._parts += 1
        if result.skipped:
            self._skipped, self._loss = True, result.loss
        else:
            self._rows += rows
        return result

    def _finish(
        self, session: _steep.TrainingSession, outputs: Sequence[_steep.Tensor]
    ) -> _steep.StepResult:
        every = self._close(session)
        session.run_count = int(max(c.run_count for c in every))
        if any(c.skipped for c in every):
            return self._skip(session, every, outputs)
        total = sum(c.weight for c in every)
        if not total > 0:
            self._undo(session)
            raise DataError(
                "A step has no rows; no weight was changed.",
                expected="rows, or labels that count, on one rank at least",
                received=f"none on {len(every)} ranks",
            )
        waiting = session.accumulated_gradients()
        own = every[self.rank]
        # If the loss is weighted, the session's sums are already multiplied by the weights.
        # Else their weight is the number of parts, also of those that another session computed.
        factor = (1 if own.weighs else own.weight / (waiting.weight or 1)) / total
        try:
            self._peers.add([_tensor(s) for _, s in sorted(waiting.sums.items())], factor)
            if self._old_statistics:  # running statistics are those of one process, as with DDP
                source = next(i for i, c in enumerate(every) if c.weight > 0)
                self._peers.copy_from(source, _states(session, session.statistic_names))
        except ProviderError:
            self._undo(session)
            raise
        loss = sum(c.loss * c.weight for c in every if c.weight > 0) / total
        session.set_accumulated(1.0, loss)
        self._forget()
        self._opened = False
        try:
            update = _steep.TrainingSession.apply_gradients(session)
        except Exception:
            session.drop_gradients()
            raise
        return _result(
            session,
            loss=update.loss,
            lr=update.lr,
            grad_norm=update.grad_norm,
            loss_scale=update.loss_scale,
            outputs=outputs,
        )

    def _close(
        self, session: _steep.TrainingSession, failure: Exception | None = None
    ) -> list[_StepSummary]:
        """Return the values of each process; raise if a process failed, or if they differ."""
        own = _StepSummary(failed=failure is not None, skipped=self._skipped)
        if failure is None:
            waiting = session.accumulated_gradients()
            own.weighs = waiting.weighs
            own.weight = waiting.weight if waiting.weighs else self._rows
            own.loss = waiting.loss / waiting.weight if waiting.parts else 0
            own.step_count, own.run_count = session.step_count, session.run_count
            own.loss_scale = session.loss_scale
            own.settings, own.settings_low = _digest(self._settings_of(session))
            own.form, own.form_low = _digest("" if own.weight == 0 else self._form)
        try:
            every = self._say(own, failure)
            self._compare(session, every)
        except Exception:
            self._undo(session)
            raise
        return every

    def _settings_of(self, session: _steep.TrainingSession) -> str:
        return f"learning rate {session.lr!r}, {self.settings or 'no other'}"

    def _compare(self, session: _steep.TrainingSession, every: Sequence[_StepSummary]) -> None:
        first = every[0]
        for i, other in enumerate(every):
            if other.step_count != first.step_count:
                raise DataError(
                    "The processes have done different numbers of steps; no weight was changed.",
                    node=f"rank {i}",
                    expected=f"{first.step_count:.0f} steps, as rank 0",
                    received=f"{other.step_count:.0f} steps",
                    remedy="load the same checkpoint on every rank",
                )
        if any((c.settings, c.settings_low) != (first.settings, first.settings_low) for c in every):
            texts = self._peers.gather_texts(self._settings_of(session))
            i = next(i for i, text in enumerate(texts) if text != texts[0])
            raise DataError(
                "The processes would update differently; no weight was changed.",
                node=f"rank {i}",
                expected=f"as rank 0: {texts[0]}",
                received=texts[i],
                remedy="set rates and the optimizer's numbers alike on every rank",
            )
        if len({(c.form, c.form_low) for c in every if c.weight > 0 and not c.weighs}) > 1:
            raise DataError(
                "The labels of the processes differ in more than their first extent, so the number "
                "of elements in the mean loss is unknown; no weight was changed.",
                node=f"rank {self.rank}",
                expected="labels of equal extents but for the first",
                received=f"extents {self._form} after the first",
                remedy="pad the labels of all ranks to one length, or use a loss of torch.nn",
            )

    def _skip(
        self,
        session: _steep.TrainingSession,
        every: Sequence[_StepSummary],
        outputs: Sequence[_steep.Tensor],
    ) -> _steep.StepResult:
        """Skip the update, since gradients of a process overflowed; use the smallest loss scale."""
        runs, loss = session.run_count, self._loss
        self._undo(session)
        session.run_count = runs
        session.loss_scale = min(c.loss_scale for c in every)
        return _result(
            session, loss=loss, skipped=True, outputs=outputs, loss_scale=self._loss_scale
        )

    def _undo(self, session: _steep.TrainingSession) -> None:
        """Restore the state before the step."""
        session.run_count = self._runs
        session.drop_gradients()
        for name, value in self._old_statistics.items():
            _tensor(session.state(name)).copy_(value)
        self._opened = False
        self._forget()

    def _forget(self) -> None:
        self._parts = 0
        self._rows = 0.0
        self._skipped, self._loss = False, math.nan
        self._form = ""

    # --- exchanges --------------------------------------------------------------------------------

    def _say(self, own: _StepHeader | _StepSummary, failure: Exception | None = None) -> list[Any]:
        """Exchange a dataclass's values; raise if a process failed or is in another call."""
        self._exchanges += 1
        numbers = [float(number) for number in dataclasses.astuple(own)]
        width = max(len(dataclasses.fields(kind)) for kind in (_StepHeader, _StepSummary))
        every = self._peers.gather(numbers + [0.0] * (width - len(numbers)))
        if any(numbers_of_rank[1] for numbers_of_rank in every):
            self._tell(failure)
        for i, numbers_of_rank in enumerate(every):
            if numbers_of_rank[0] != every[0][0]:
                raise ProviderError(
                    "The processes of this training are in different calls.",
                    node=f"rank {i}",
                    expected=f"{_CALLS[int(every[0][0])]}, as rank 0",
                    received=_CALLS[int(numbers_of_rank[0])],
                    remedy="make the same calls in the same order on every rank",
                )
        return [type(own)(*numbers_of_rank[: len(numbers)]) for numbers_of_rank in every]

    def _tell(self, failure: Exception | None) -> NoReturn:
        """Raise this process's failure, or that of another process with its rank."""
        own = {}
        if failure is not None:
            parts = {k: v for k, v in vars(failure).items() if isinstance(v, str)}
            own = {"kind": type(failure).__name__, "text": str(failure), **parts}
        failures = [json.loads(text) for text in self._peers.gather_texts(json.dumps(own))]
        if failure is not None:
            raise failure
        i = next(i for i, other in enumerate(failures) if other)
        kind, text = failures[i]["kind"], failures[i].get("what") or failures[i]["text"]
        error_class = (
            getattr(errors, kind, ProviderError) if kind in errors.__all__ else ProviderError
        )
        raise error_class(
            f"Rank {i} failed; no weight was changed.",
            node=f"rank {i}",
            op=failures[i].get("op", ""),
            expected=failures[i].get("expected", ""),
            received=f"{kind}: {text}"
            + "".join(f" ({x})" for x in [failures[i].get("received")] if x),
            remedy=failures[i].get("remedy", ""),
        )

    def _explain_difference(self) -> NoReturn:
        """Raise ModelError: the processes train different models."""
        descriptions = [
            json.loads(t) for t in self._peers.gather_texts(json.dumps(self.descriptions))
        ]
        first = descriptions[0]
        for i, other in enumerate(descriptions):
            for name in sorted({*first, *other}, key=_causes_first):
                if first.get(name) != other.get(name):
                    expected, received = _first_difference(
                        first.get(name, "none"), other.get(name, "none")
                    )
                    raise ModelError(
                        "The processes do not train the same model; no weight was changed.",
                        node=f"rank {i}: {name}",
                        expected=f"{expected}, as rank 0",
                        received=received,
                        remedy="give all ranks the same model, options and versions",
                    )
        raise AssertionError("no description differs")


def describe_versions() -> dict[str, str]:
    """Return the versions that must be the same in all processes."""
    return {"version of steep": extension.VERSION, "version of torch": torch.__version__}


def option_text(value: object) -> str:
    """Return an option as text; equal texts mean equal options."""
    if isinstance(value, _steep.OptimizerOptions):
        names = [name for name in dir(value) if not name.startswith("_")]
        return option_text({name: getattr(value, name) for name in names})
    if isinstance(value, Mapping):
        return str({str(k): option_text(v) for k, v in sorted(value.items())})
    if isinstance(value, (list, tuple)):
        return str([option_text(v) for v in value])
    return repr(value)


def _causes_first(name: str) -> tuple[bool, str]:
    return name.split(maxsplit=1)[0] not in ("version", "model", "option"), name


def _first_difference(one: str, other: str) -> tuple[str, str]:
    """Return the first line of each text that differs."""
    lines = itertools.zip_longest(one.splitlines(), other.splitlines(), fillvalue="nothing more")
    return next(((a.strip(), b.strip()) for a, b in lines if a != b), (one, other))


def _digest(text: str) -> tuple[float, float]:
    start = hashlib.sha256(text.encode()).digest()[:8]
    return float(int.from_bytes(start[:4], "big")), float(int.from_bytes(start[4:], "big"))


def _tensor(tensor: _steep.Tensor) -> torch.Tensor:
    return torch.from_dlpack(tensor)


def _states(
    session: _steep.TrainingSession, names: Sequence[str] | None = None
) -> list[torch.Tensor]:
    """Return the tensors of states by name; by default all that a step may change."""
    if names is None:
        names = [
            *session.parameter_names,
            *session.statistic_names,
            *session.optimizer_state_names,
        ]
    tensors = {name: _tensor(session.state(name)) for name in sorted(names)}
    for name, tensor in list(tensors.items()):
        if tensor.dtype in (torch.int8, torch.uint8) and name in session.optimizer_state_names:
            scale = name.replace("/", "_scale/", 1)
            tensors[scale] = _tensor(session.state(scale))
    return [tensors[name] for name in sorted(tensors)]


def _result(
    session: _steep.TrainingSession,
    *,
    loss: float,
    lr: float | None = None,
    grad_norm: float = 0.0,
    skipped: bool = False,
    loss_scale: float | None = None,
    outputs: Sequence[_steep.Tensor] = (),
) -> _steep.StepResult:
    return _steep.StepResult(
        loss=loss,
        lr=session.lr if lr is None else lr,
        grad_norm=grad_norm,
        step=session.step_count,
        skipped=skipped,
        loss_scale=session.loss_scale if loss_scale is None else loss_scale,
        outputs=list(outputs),
    )

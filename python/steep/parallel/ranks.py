"""A session's part of a training in several processes, which the engine does."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence

from steep import _steep
from steep.errors import DataError, ProviderError

log = logging.getLogger("steep")


class Ranks:
    """The processes that train a session's model together.

    Attributes:
        rank: number of this process; rank 0 writes files.
        size: number of processes.
    """

    _engine: _steep.DataParallel  # once a session exists; it holds no reference to it

    def __init__(self, way: str, zero: int, full_checkpoints: bool, wire_precision: str) -> None:
        """Connect to the processes; raise as ``connect``."""
        self._peers = connect(way)
        self._way, self._zero, self._wire_precision = way, zero, wire_precision
        self._full_checkpoints = bool(full_checkpoints)
        self._lock = threading.RLock()
        self.rank: int = self._peers.rank
        self.size: int = self._peers.size

    def describe(self, session: _steep.TrainingSession, model: str | bytes) -> None:
        """Begin, once the engine's session exists.

        Args:
            session: it has the options that are compared.
            model: path or bytes of its file, compared by a hash.

        Raises:
            ModelError: with states that are divided: the processes train different models.
        """
        facts = {"model": f"sha256 {_hash_of(model)}"}
        if self._way == "torch":
            import torch

            facts["version of torch"] = torch.__version__
        self._engine = _steep.DataParallel(
            session, self._peers, facts, self._zero, self._wire_precision
        )
        if self._engine.warning and self.rank == 0:
            log.warning("%s", self._engine.warning)

    def _engine_of(self, _: _steep.TrainingSession) -> _steep.DataParallel:
        """Return what does the steps of a session."""
        return self._engine

    def step(
        self,
        session: _steep.TrainingSession,
        *arrays: object,
        accumulate: bool = False,
        **named: object,
    ) -> _steep.StepResult:
        """Run one step on the rows of all processes; see ``TrainingSession.step``."""
        if not isinstance(accumulate, bool):
            raise DataError(
                "With parallel, no input can have this name.",
                node="accumulate",
                remedy="give the arrays in order, or rename the model's input",
            )
        with self._lock:
            engine = self._engine_of(session)
            return (
                engine.accumulate(0, *arrays, **named)
                if accumulate
                else engine.step(*arrays, **named)
            )

    def add_part(
        self, session: _steep.TrainingSession, rows: int, *arrays: object, **named: object
    ) -> _steep.StepResult:
        """Accumulate the gradients of this process's rows, of ``rows`` in all processes.

        All parts of an update have the same weight, as in one process. The loss is that of this
        process's rows.
        """
        with self._lock:
            return self._engine_of(session).accumulate(rows, *arrays, **named)

    def apply_gradients(self, session: _steep.TrainingSession) -> _steep.StepResult:
        """Update by the gradients of all processes; see ``TrainingSession.apply_gradients``."""
        with self._lock:
            return self._engine_of(session).apply_gradients()

    def drop(self, session: _steep.TrainingSession) -> None:
        """Discard accumulated gradients; all processes must do so."""
        with self._lock:
            self._engine_of(session).drop_gradients()

    @property
    def accumulated(self) -> int:
        """Number of parts whose gradients wait, the same in all processes."""
        return self._engine.accumulated

    def gather(self, call: str, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of every process, which all are at the point that ``call`` names.

        Raises:
            ProviderError: a process is at another point, or was lost.
            Error: of the class of another process's error in ``telling``.
        """
        with self._lock:
            return self._peers.agree(call, numbers)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the other processes of an error in the ``with`` block, unless all have it.

        An update that has begun ends: its gradients are dropped.
        """
        before = self._peers.agreements
        try:
            yield
        except Exception as error:
            if self._peers.agreements == before or not self._peers.failed_together:
                with self._lock:
                    if self._engine.opened:
                        self._engine.fail(error)
                    else:
                        self._peers.tell(error)
            raise

    def refresh(self) -> None:
        """Copy rank 0's state to all before the next step: this process's state has changed."""
        self._engine.refresh()

    def loaded(self, session: _steep.TrainingSession) -> None:
        """Discard accumulated gradients, and refresh: the session has loaded a checkpoint."""
        with self._lock:
            self._engine_of(session).loaded()

    def save_checkpoint(
        self, session: _steep.TrainingSession, path: str | os.PathLike[str], user: str
    ) -> None:
        """Write a checkpoint, by rank 0 or in shards; all processes call this."""
        with self._lock:
            self._engine_of(session).save_checkpoint(path, user, self._full_checkpoints)


def connect(way: str) -> _steep.Peers:
    """Return the processes that a launcher started together with this one.

    Args:
        way: "torch": PyTorch's default group, which torchrun starts; "gloo": those of
            ``steep launch``; "mpi": those of Open MPI's mpirun.

    Raises:
        ProviderError: another way; PyTorch or the plug-in is not installed; no launcher started
            this process, or the others cannot be reached.
    """
    if way in ("gloo", "mpi"):
        return _connect_once(way)
    if way != "torch":
        raise ProviderError(
            "The value of `parallel` is not supported.",
            node="parallel",
            expected='"torch", for the processes of torch.distributed, "gloo" for those of '
            '`steep launch`, or "mpi" for those of mpirun',
            received=repr(way),
        )
    try:
        from steep.parallel.torch_peers import TorchPeers  # it needs PyTorch
    except ImportError as e:
        raise ProviderError(
            'parallel="torch" needs PyTorch.',
            node="parallel",
            expected="torch, for torch.distributed",
            received=str(e),
            remedy='pip install torch; or use parallel="gloo" or "mpi", which do not need it',
        ) from e
    return TorchPeers()


@functools.cache
def _connect_once(way: str) -> _steep.Peers:
    """Connect: all sessions of a process share its only connection."""
    return _steep.connect(way)


def _hash_of(model: str | bytes) -> str:
    """Return the hash of a model's file, without external data."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()[:16]
    digest = hashlib.sha256()
    with open(model, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:16]

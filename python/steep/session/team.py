"""The processes that run ``fit`` together: one, or those of ``parallel``."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from steep import _steep
from steep.errors import DataError, counted
from steep.session.batches import ArrayBatches, Batch, GivenBatches, Rows
from steep.session.destinations import Array

if TYPE_CHECKING:
    from steep.parallel.ranks import Ranks

_COMPARED_BYTES = 2**28
"""Data of more bytes are compared in some rows: at 1 GB/s, this many take a quarter of a second."""
_FEWEST_ROWS = 64
_PART_BYTES = 2**22


class Team:
    """All processes make the same calls in the same order.

    Args:
        ranks: the processes of ``parallel``; None for this process alone.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
    """

    def __init__(self, ranks: Ranks | None) -> None:
        self._ranks = ranks
        self.rank, self.size = (0, 1) if ranks is None else (ranks.rank, ranks.size)

    def gather(self, call: str, *numbers: float) -> list[list[float]]:
        """Return the numbers of every process.

        Raises:
            ProviderError: a process is at another call, or was lost.
            Error: of the class of another process's error in ``telling``.
        """
        if self._ranks is None:
            return [list(numbers)]
        return self._ranks.gather(call, [float(n) for n in numbers])

    def telling(self) -> contextlib.AbstractContextManager[None]:
        """Tell the other processes of an error in the ``with`` block."""
        return contextlib.nullcontext() if self._ranks is None else self._ranks.telling()

    def waiting(self, session: _steep.TrainingSession) -> int:
        """Return the number of parts whose gradients wait to be applied."""
        return session.accumulated if self._ranks is None else self._ranks.accumulated

    def add_part(self, session: _steep.TrainingSession, batch: Batch) -> None:
        """Accumulate the gradients of this process's rows of a batch."""
        if self._ranks is None:
            session.step(*batch.ordered, **batch.named, accumulate=True)
        else:
            self._ranks.add_part(session, batch.rows, *batch.ordered, **batch.named)

    @contextlib.contextmanager
    def dropping(self, session: _steep.TrainingSession) -> Iterator[None]:
        """Drop gradients that wait after the ``with`` block: an error came between two parts.

        With other processes, ``telling`` does so.
        """
        try:
            yield
        finally:
            if self._ranks is None and session.accumulated:
                session.drop_gradients()

    def require_divisible(self, fixed: int | None) -> None:
        """Raise DataError if the model fixes the rows of a batch, which is then not divisible."""
        if fixed is not None and self.size > 1:
            raise DataError(
                "The model fixes the number of rows: its batches cannot be divided.",
                node="parallel",
                expected="inputs whose first extent is open",
                received=f"batches of {counted(fixed, 'row')}",
                remedy="Export the model with an open first extent, or train in one process.",
            )

    def require_same(self, data: ArrayBatches | GivenBatches, settings: str) -> None:
        """Raise DataError unless all processes have the same arrays: each takes its share of them.

        All rows are compared, or else, of more than 256 MiB, rows at equal distances, the first
        and the last among them.

        Args:
            data: all rows, those that are held out included.
            settings: what else decides which rows a share has, as text.
        """
        if self.size == 1:
            return
        if isinstance(data, GivenBatches):
            raise DataError(
                "With parallel, fit divides arrays among the processes.",
                node="data",
                expected="a dict or a tuple of arrays, the same in all processes",
                received="batches",
                remedy="Write the loop: all processes call step() equally often, each with rows "
                "of its own.",
            )
        gathered = self.gather(
            "fit: data", data.count, checksum(data), zlib.crc32(settings.encode())
        )
        if len({digest for _, _, digest in gathered}) > 1:
            raise DataError(
                "The processes call fit with other arguments, or at another step.",
                expected="the same everywhere: they decide which rows each process takes",
                received=f"in rank {self.rank}: {settings}",
            )
        every = [facts for *facts, _ in gathered]
        other = next((rank for rank, facts in enumerate(every) if facts != every[0]), None)
        if other is not None:
            raise DataError(
                "The processes have different data.",
                node="data",
                expected="the same arrays in all processes: each takes its share of every batch",
                received=f"{counted(int(every[0][0]), 'row')} in rank 0, "
                f"{counted(int(every[other][0]), 'row')} in rank {other}"
                + (" with other values" if every[0][0] == every[other][0] else ""),
                remedy="Give all processes all rows; or write the loop, where each calls step() "
                "with rows of its own.",
            )


def checksum(data: ArrayBatches, most: int | None = None) -> int:
    """Return the checksum of all rows, or of rows at equal distances if there are many bytes.

    Args:
        data: all rows.
        most: number of rows to read, if it is less.
    """
    size = max(1, sum(value.nbytes for value in _arrays(data, np.arange(1))))
    count = min(data.count, most or max(_FEWEST_ROWS, _COMPARED_BYTES // size))
    checksum, part = 0, max(1, _PART_BYTES // size)
    for first in range(0, count, part):
        places = np.arange(first, min(first + part, count))
        for array in _arrays(data, places * (data.count - 1) // max(count - 1, 1)):
            head = f"{array.dtype} {array.shape}".encode()
            checksum = zlib.crc32(array.tobytes(), zlib.crc32(head, checksum))
    return checksum


def _arrays(data: ArrayBatches, rows: Rows) -> list[Array]:
    batch = data.rows(rows)
    values = batch.named.values() if batch.named else batch.ordered
    return [_steep.Tensor(value).numpy() for value in values]

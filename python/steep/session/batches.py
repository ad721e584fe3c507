"""The data of ``fit``: arrays that are cut into batches, or batches that the caller makes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from steep import _steep
from steep.errors import DataError, ShapeError
from steep.session.images import ImageFolder, ImageTable

Rows = NDArray[np.int64]
Arrays = Mapping[str, object] | tuple[object, ...]
Data = Arrays | Iterable[object] | ImageFolder


class HasRows(Protocol):
    """An array of NumPy or PyTorch."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, rows: object) -> object:
        """Return the rows of a slice or of indices."""


class Batch:
    """Arrays of one step, in order or by name.

    Attributes:
        rows: number of rows of all processes, if the arrays have a row for each sample; else 0.
    """

    def __init__(self, arrays: Arrays, rows: int = 0) -> None:
        self.rows = rows
        self.named: dict[str, object] = dict(arrays) if isinstance(arrays, Mapping) else {}
        self.ordered: tuple[object, ...] = () if isinstance(arrays, Mapping) else arrays

    def label(self, name: str) -> object:
        """Return the labels; without a loss that has any, the first array."""
        if self.named:
            return self.named.get(name, next(iter(self.named.values())))
        return self.ordered[-1 if name else 0]


class ArrayBatches:
    """Batches of arrays that have a row for each sample.

    Args:
        arrays: by name, or in the order of the session's inputs.
        size: number of rows of a batch; the last one may have fewer.
        whole: leave out a last batch that is smaller.
        rows: the rows that count; None for all.
        what: name of the argument, for errors.

    Raises:
        DataError: there are no arrays, or no rows.
        ShapeError: numbers of rows differ.
    """

    def __init__(
        self, arrays: Arrays, size: int, whole: bool, what: str, rows: Rows | None = None
    ) -> None:
        by_name = isinstance(arrays, Mapping)
        self._names = list(arrays) if isinstance(arrays, Mapping) else None
        values = arrays.values() if isinstance(arrays, Mapping) else arrays
        self._arrays = [_sliceable(a, what) for a in values]
        self._size, self._whole, self._what, self._rows = size, whole, what, rows
        counts = [len(a) for a in self._arrays]
        if len(set(counts)) > 1:
            names = self._names or range(len(counts))
            raise ShapeError(
                "Arrays have different numbers of rows.",
                node=what,
                expected="a row for each sample in every array",
                received=", ".join(f"{n}: {c}" for n, c in zip(names, counts, strict=True)),
                remedy="If an input has no rows, give batches: a list of dicts or tuples.",
            )
        if not counts or counts[0] == 0:
            raise DataError(
                "There is no data.",
                node=what,
                expected="arrays by name" if by_name else "a tuple of arrays",
                received="no rows" if counts else "no arrays",
            )
        self.count = counts[0] if rows is None else len(rows)
        if len(self) == 0:
            raise DataError(
                "There are too few rows for one batch.",
                node=what,
                expected=f"{size} rows or more: the model fixes them, or drop_last is given",
                received=str(self.count),
            )

    def __len__(self) -> int:
        """Return the number of batches."""
        return self.count // self._size if self._whole else -(-self.count // self._size)

    @property
    def left_out(self) -> int:
        """Rows of the last batch that are left out, because it is smaller."""
        return self.count % self._size if self._whole else 0

    def batches(
        self, order: Rows | None = None, rank: int = 0, ranks: int = 1, done: int = 0
    ) -> Iterator[Batch]:
        """Yield all batches but the first ones.

        Args:
            order: a permutation of the rows.
            rank: which share of each batch's rows to take; shares differ by one row at most.
            ranks: number of shares.
            done: number of the first batches, which are left out.
        """
        rows = order if self._rows is None else self._rows if order is None else self._rows[order]
        for i in range(done, len(self)):
            first = i * self._size
            whole = min(self._size, self.count - first)
            least, more = divmod(whole, ranks)
            begin = first + rank * least + min(rank, more)
            part = slice(begin, begin + least + (rank < more))
            yield self._take(part if rows is None else rows[part], whole)

    def rows(self, numbers: Rows) -> Batch:
        """Return the rows of these numbers, as one batch."""
        return self._take(numbers if self._rows is None else self._rows[numbers], len(numbers))

    def _take(self, rows: slice | Rows, whole: int) -> Batch:
        values = [_take(a, rows) for a in self._arrays]
        arrays = dict(zip(self._names, values, strict=True)) if self._names else (*values,)
        return Batch(arrays, whole)

    def split(
        self, share: float, order: Rows | None, whole: bool
    ) -> tuple[ArrayBatches, ArrayBatches]:
        """Return the training rows, and the validation rows: the last of ``order``.

        Args:
            share: the part of the rows that are validation rows.
            order: a permutation of the rows; None for their own.
            whole: leave out a last batch of the validation rows that is smaller.

        Raises:
            DataError: one of the two would be empty.
        """
        held = round(share * self.count) if 0 < share < 1 else 0  # NaN is not
        if not 0 < held < self.count:
            raise DataError(
                "The split leaves no rows for training or none for validation.",
                node="validation",
                expected="a part from 0 to 1, both excluded",
                received=f"{share} of {self.count} rows",
            )
        rows = np.arange(self.count) if order is None else order
        arrays: Arrays = (*self._arrays,)
        if self._names is not None:
            arrays = dict(zip(self._names, self._arrays, strict=True))
        parts = np.sort(rows[:-held]), np.sort(rows[-held:])
        return (
            ArrayBatches(arrays, self._size, self._whole, self._what, parts[0]),
            ArrayBatches(arrays, self._size, whole, "validation", parts[1]),
        )


class GivenBatches:
    """Batches of a list, a DataLoader or another iterable.

    Args:
        batches: what is iterated in each epoch: dicts, tuples or lists of arrays.
        what: name of the argument, for errors.
    """

    count = None
    left_out = 0

    def __init__(self, batches: Iterable[object], what: str) -> None:
        self._batches, self._what = batches, what

    @property
    def once(self) -> bool:
        """Whether it can be iterated once only."""
        return isinstance(self._batches, Iterator)

    def __len__(self) -> int:
        """Return the number of batches, or 0 if it is not known."""
        if not isinstance(self._batches, Sized):
            return 0
        try:
            return len(self._batches)
        except TypeError:  # PyTorch's loader has a length only if its data set has
            return 0

    def batches(
        self, order: Rows | None = None, rank: int = 0, ranks: int = 1, done: int = 0
    ) -> Iterator[Batch]:
        """Yield all batches in their order, undivided. Raises DataError: there is none."""
        empty = True
        for batch in self._batches:
            empty = False
            if isinstance(batch, (Mapping, tuple)):
                yield Batch(batch)
            else:
                yield Batch((*batch,) if isinstance(batch, list) else (batch,))
        if empty:
            raise DataError("There is no data.", node=self._what, received="no batches")


def batches_of(data: Data, size: int, whole: bool, what: str) -> ArrayBatches | GivenBatches:
    """Return the batches of ``data``: arrays are cut, other iterables have batches.

    Raises:
        DataError: it is neither.
        ShapeError: numbers of rows differ.
    """
    if hasattr(data, "shape") and not isinstance(data, (Mapping, tuple)):
        data = (data,)
    if isinstance(data, tuple) and any(isinstance(a, (tuple, Mapping)) for a in data):
        raise DataError(
            "A tuple has arrays, not batches.",
            node=what,
            expected="a tuple of arrays, or a list of batches",
            received="a tuple of tuples or dicts",
        )
    if isinstance(data, (Mapping, tuple)):
        return ArrayBatches(data, size, whole, what)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        return GivenBatches(data, what)
    raise DataError(
        "This is no data to train on.",
        node=what,
        expected="a dict or a tuple of arrays, or an iterable of batches",
        received=type(data).__name__,
    )


def fixed_rows(inputs: Sequence[_steep.TensorInfo]) -> int | None:
    """Return the number of rows that the model fixes for all of its inputs; None if it is open."""
    first = {info.shape[0] if info.has_rank and info.shape else None for info in inputs}
    extent = first.pop() if len(first) == 1 else None
    return extent if isinstance(extent, int) else None


def _sliceable(array: object, what: str) -> HasRows:
    """Return an array of NumPy or PyTorch with rows. Raises DataError: it has none."""
    rows: object
    if _is_torch(array) and not _is_dense(array):
        _steep.Tensor(array)  # it refuses it
    if isinstance(array, (np.ndarray, ImageTable)) or _is_torch(array):
        rows = array
    elif isinstance(array, _steep.Tensor) or not hasattr(array, "__array__"):
        rows = _steep.Tensor(array).numpy()
    else:
        rows = np.asarray(array)  # pandas, for example, whose indices are labels
    if getattr(rows, "ndim", 0) == 0 and not isinstance(rows, ImageTable):
        raise DataError(
            "An array has no rows.",
            node=what,
            expected="a row for each sample in every array",
            received="a single number",
        )
    return cast(HasRows, rows)


def _is_torch(array: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _is_dense(tensor: object) -> bool:
    strided = sys.modules["torch"].strided
    return getattr(tensor, "layout", strided) is strided and not getattr(tensor, "is_nested", False)


def _take(array: HasRows, rows: slice | Rows) -> object:
    if isinstance(rows, np.ndarray) and _is_torch(array):
        return array[sys.modules["torch"].from_numpy(rows)]
    return array[rows]

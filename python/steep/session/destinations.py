"""Results that are written to arrays of the caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steep import _steep
from steep.errors import DataError, ShapeError

Array = NDArray[Any]  # of any dtype
Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class ResultType:
    """Name and type of a result; an extent that is not a number is open."""

    name: str
    dtype: str
    shape: Shape | None


def types_of(infos: Iterable[_steep.TensorInfo]) -> list[ResultType]:
    """Return the types of values that a session describes."""
    return [ResultType(i.name, i.dtype, i.shape if i.has_rank else None) for i in infos]


class Destinations:
    """Arrays of the caller, checked before the run that computes their values.

    NumPy arrays may have any strides; PyTorch tensors and others are contiguous, in CPU memory.

    Args:
        arrays: the arrays by name.
        types: the values that the run returns.

    Raises:
        DataError: a name is unknown, an array is not writable, or two arrays overlap.
        ShapeError: a dtype, a rank or a known extent differs.
    """

    def __init__(self, arrays: Mapping[str, object], types: Iterable[ResultType]) -> None:
        type_of = {t.name: t for t in types}
        self._views: dict[str, Array] = {}
        self.arrays = dict(arrays)
        for name, array in arrays.items():
            if name not in type_of:
                raise DataError(
                    "There is no result of this name.",
                    node=name,
                    expected=", ".join(type_of) or "no name: there are no such results",
                    received=name,
                )
            view = writable_view(name, array)
            _require(view, type_of[name])
            if _may_overlap_itself(view):
                _refuse(name, "an array whose elements share memory")
            for other, before in self._views.items():
                if np.may_share_memory(view, before) and np.shares_memory(view, before):
                    raise DataError(
                        "Two results would be written to the same memory.",
                        node=name,
                        expected="arrays that do not overlap",
                        received=f"the memory of '{other}'",
                    )
            self._views[name] = view

    def require_in_place(self) -> None:
        """Raise DataError if PyTorch has moved the memory of a tensor, or changed its shape."""
        for name, view in self._views.items():
            array: Any = self.arrays[name]
            if not callable(getattr(array, "data_ptr", None)):
                continue
            moved = view.size > 0 and array.data_ptr() != _address(view)
            if moved or tuple(array.shape) != view.shape:
                raise DataError(
                    "The memory of a tensor for a result was moved or freed.",
                    node=name,
                    expected="the tensor as it was bound",
                    received="other memory or another shape",
                    remedy="Call bind_outputs() again.",
                )

    def require_apart(self, arrays: Mapping[str, object]) -> None:
        """Raise DataError if a result would be written to the memory of one of these arrays."""
        for name, array in arrays.items():
            other = _steep.Tensor(array).numpy()
            for result, view in self._views.items():
                if np.may_share_memory(view, other) and np.shares_memory(view, other):
                    raise DataError(
                        "A result would be written to memory that backward reads.",
                        node=result,
                        expected="an array of its own, or a session without borrow",
                        received=f"the memory of '{name}'",
                    )

    def write(self, results: Mapping[str, _steep.Tensor | Array]) -> None:
        """Copy results to their arrays. Raises ShapeError: an open extent differs."""
        values: dict[str, Array] = {}
        for name, view in self._views.items():
            result = results[name]
            values[name] = result if isinstance(result, np.ndarray) else result.numpy()
            _require(view, ResultType(name, values[name].dtype.name, values[name].shape))
        for name, view in self._views.items():
            np.copyto(view, values[name], casting="no")


def gradient_destinations(out: object, types: Sequence[ResultType]) -> Destinations:
    """Return arrays for gradients: by name, or the parts of one vector for all of ``types``."""
    arrays = out if isinstance(out, Mapping) else _flat_parts(out, types)
    return Destinations(arrays, types)


def _flat_parts(flat: object, types: Sequence[ResultType]) -> dict[str, Array]:
    """Return the parts of one buffer: an array for each value, in this order.

    Raises:
        DataError: the buffer is not contiguous or not writable.
        ShapeError: it does not have the number of elements of all values.
    """
    view = writable_view("out", flat)
    shapes = [tuple(e for e in t.shape or () if isinstance(e, int)) for t in types]
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    if view.shape != (sum(sizes),):
        raise ShapeError(
            "A buffer for all gradients has the wrong shape.",
            node="out",
            expected=f"[{sum(sizes)}], or arrays by name",
            received=str(list(view.shape)),
        )
    if not view.flags.c_contiguous:
        raise DataError(
            "A buffer for all gradients must be contiguous.", node="out", expected="stride 1"
        )
    ends = np.cumsum(sizes)
    parts = zip(types, shapes, sizes, ends, strict=True)
    return {t.name: view[end - size : end].reshape(shape) for t, shape, size, end in parts}


def _may_overlap_itself(view: Array) -> bool:
    """Return whether elements of an array may have the same memory, as after a broadcast."""
    end = view.itemsize
    for step, extent in sorted(zip(map(abs, view.strides), view.shape, strict=True)):
        if extent > 1 and step < end:
            return True
        end += step * max(extent - 1, 0)
    return False


def writable_view(name: str, array: object) -> Array:
    """Return a NumPy array of the same memory. Raises DataError: writes would not reach it."""
    if isinstance(array, np.ndarray):
        if not array.flags.writeable:
            _refuse(name, "an array that is read-only")
        return array
    if isinstance(array, (int, float, list, tuple, str, bytes, np.generic)) or array is None:
        _refuse(name, f"a {type(array).__name__}")
    plain = array.detach() if getattr(array, "requires_grad", False) else array  # type: ignore[attr-defined]
    shared = plain if isinstance(plain, _steep.Tensor) else _steep.Tensor(plain)
    view: Array = shared.numpy()
    address = getattr(plain, "data_ptr", None)
    if callable(address):  # PyTorch's; what is not contiguous was copied
        own = view.size == 0 or address() == shared.data_ptr
    elif isinstance(plain, _steep.Tensor):
        own = True
    else:
        own = _is_shared(plain, view)
    if not own:
        _refuse(name, f"a {type(array).__name__} that is read-only or not contiguous")
    return view


def _address(view: Array) -> int:
    address: int = view.__array_interface__["data"][0]
    return address


def _is_shared(array: object, view: Array) -> bool:
    """Return whether a buffer or an array with DLPack is writable, and has the view's memory."""
    try:
        own = np.asarray(memoryview(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        try:
            own = np.from_dlpack(array)  # type: ignore[arg-type]
        except (TypeError, ValueError, BufferError, RuntimeError):
            return False
    return bool(own.flags.writeable) and (view.size == 0 or np.shares_memory(own, view))


def _refuse(name: str, received: str) -> None:
    raise DataError(
        "A result cannot be written to this object.",
        node=name,
        expected="a writable NumPy array, or a contiguous array in CPU memory (PyTorch, DLPack)",
        received=received,
        remedy=f"numpy.empty(shape, dtype) for '{name}'",
    )


def _require(view: Array, wanted: ResultType) -> None:
    shape = wanted.shape
    fits = view.dtype.name == wanted.dtype and view.dtype.isnative
    if shape is not None:
        pairs = zip(shape, view.shape, strict=False)
        fits = fits and view.ndim == len(shape)
        fits = fits and all(is_ == extent or not isinstance(extent, int) for extent, is_ in pairs)
    if fits:
        return
    name = view.dtype.name if view.dtype.isnative else str(view.dtype)  # of another byte order
    extents = "" if shape is None else f"[{', '.join('?' if e is None else str(e) for e in shape)}]"
    raise ShapeError(
        "An array for a result has the wrong type.",
        node=wanted.name,
        expected=wanted.dtype + extents,
        received=f"{name}{list(view.shape)}",
        remedy="Results are not converted: give an array of this dtype and shape.",
    )

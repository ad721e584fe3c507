"""``OrtValue``: ONNX Runtime's class for an array, and ``OrtValueVector``, a list of them.

ONNX Runtime has two classes of the name ``OrtValue``: that of ``onnxruntime`` wraps that of
``onnxruntime.capi._pybind_state``. Here the former, ``PythonOrtValue``, is a subclass of the
latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from onnx import helper

from steep import _steep
from steep.compat.inference.ort_device import OrtDevice, require_cpu
from steep.errors import DataError, ShapeError, counted

Array = np.ndarray[Any, Any]


class OrtValue:
    """A tensor in CPU memory. Sessions and modules accept it like an array; it supports DLPack.

    >>> value = OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32))
    >>> value.shape(), value.data_type()
    ([2, 3], 'tensor(float)')
    """

    def __init__(self, array: Array) -> None:
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise DataError(
                "An OrtValue can hold only a tensor of numbers.",
                expected="a NumPy array",
                received=str(getattr(array, "dtype", type(array).__name__)),
                remedy="OrtValue.ortvalue_from_numpy(array)",
            )
        native = array.dtype.newbyteorder("=")
        self._array = array if array.dtype == native else array.astype(native)

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, device_type: str | OrtDevice = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value that shares an array's memory; that of a copy if it is not contiguous.

        Raises:
            DataError: it is no array of numbers, or the device is not "cpu".
        """
        require_cpu(device_type, device_id)
        contiguous = isinstance(numpy_obj, np.ndarray) and numpy_obj.flags.c_contiguous
        return cls(numpy_obj if contiguous else np.array(numpy_obj, order="C"))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: DTypeLike | int = np.float32,
        device_type: str | OrtDevice = "cpu",
        device_id: int = 0,
    ) -> OrtValue:
        """Return a value of zeros, of a NumPy dtype or of a number of ``onnx.TensorProto``.

        Raises:
            DataError: the device is not "cpu", or there is no such dtype.
        """
        require_cpu(device_type, device_id)
        try:
            if isinstance(element_type, int):
                return cls(np.zeros(list(shape), helper.tensor_dtype_to_np_dtype(element_type)))
            return cls(np.zeros(list(shape), element_type))
        except (KeyError, TypeError) as error:
            raise DataError(
                "There is no such element type.",
                expected="a NumPy dtype, or a number of onnx.TensorProto",
                received=repr(element_type),
            ) from error

    @classmethod
    def from_dlpack(cls, data: object, is_bool_tensor: bool = False) -> OrtValue:
        """Return a value that shares the memory of a DLPack capsule or an array with DLPack.

        Args:
            data: the capsule or array; in CPU memory.
            is_bool_tensor: its bytes are booleans, for which old versions of DLPack have no type.

        Raises:
            DataError: it is no array in CPU memory.
        """
        array = _steep.Tensor(data).numpy()
        return cls(array.view(np.bool_) if is_bool_tensor and array.dtype == np.uint8 else array)

    def to_dlpack(self) -> object:
        """Return a DLPack capsule that shares the memory."""
        return _steep.Tensor(self._array).__dlpack__()

    def numpy(self) -> Array:
        """Return a copy as an array."""
        result: Array = self._array.copy()
        return result

    def shape(self) -> list[int]:
        """Return the extents."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type in ONNX's notation: "tensor(float)"."""
        name = {"float32": "float", "float64": "double"}.get(self._array.dtype.name)
        return f"tensor({name or self._array.dtype.name})"

    def element_type(self) -> int:
        """Return ONNX's number for the dtype."""
        return int(helper.np_dtype_to_tensor_dtype(self._array.dtype))

    def device_name(self) -> str:
        """Return "Cpu", as the class of ``onnxruntime.capi._pybind_state`` writes it."""
        return "Cpu"

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._array.ctypes.data)

    def has_value(self) -> bool:
        """Return True: there is always a tensor."""
        return True

    def is_tensor(self) -> bool:
        """Return True."""
        return True

    def is_tensor_sequence(self) -> bool:
        """Return False."""
        return False

    def is_sparse_tensor(self) -> bool:
        """Return False."""
        return False

    def update_inplace(self, np_arr: Array) -> None:
        """Copy an array into the tensor. Raises ShapeError for another dtype or shape."""
        array = np.asarray(np_arr)
        self.require_type_of(array)
        np.copyto(self._array, array)

    def require_type_of(self, array: Array) -> None:
        """Raise ShapeError unless an array has the tensor's dtype and shape."""
        if array.dtype != self._array.dtype or array.shape != self._array.shape:
            raise ShapeError(
                "The type of an OrtValue cannot change.",
                expected=f"{self._array.dtype}{self.shape()}",
                received=f"{array.dtype}{list(array.shape)}",
            )

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}, {self.shape()})"


class PythonOrtValue(OrtValue):
    """``onnxruntime.OrtValue``; its methods are those of ``OrtValue``."""

    @classmethod
    def of(cls, value: OrtValue) -> PythonOrtValue:
        """Return a value of this class that shares the memory of ``value``."""
        return value if isinstance(value, cls) else cls(value._array)

    @property
    def _ortvalue(self) -> OrtValue:  # ONNX Runtime's class wraps a value of this name
        return OrtValue(self._array)

    def device_name(self) -> str:
        """Return "cpu"."""
        return "cpu"


class OrtValueVector(list[OrtValue]):
    """A list of OrtValues, for the calls of ``TrainingAgent``.

    >>> feeds = OrtValueVector()
    >>> feeds.push_back(OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32)))
    >>> len(feeds)
    1
    """

    def __init__(self, values: Iterable[OrtValue] = ()) -> None:
        super().__init__()
        for value in values:
            self.push_back(value)

    def push_back(self, value: object, is_bool_tensor: bool = False) -> None:
        """Append an OrtValue, or the memory of a DLPack capsule or array.

        Raises:
            DataError: it is none of these.
        """
        if not isinstance(value, OrtValue):
            value = OrtValue.from_dlpack(value, is_bool_tensor)
        self.append(value)

    def push_back_batch(
        self,
        torch_tensors: Sequence[Any],
        data_ptrs: Sequence[int] = (),
        element_types: Sequence[Any] = (),
        shapes: Sequence[Sequence[int]] = (),
        devices: Sequence[OrtDevice] = (),
    ) -> None:
        """Append the memory of several tensors; the other arguments are redundant."""
        for device in devices:
            require_cpu(device)
        for tensor in torch_tensors:
            self.push_back(tensor)

    def reserve(self, count: int) -> None:
        """Do nothing: a list grows on demand."""

    def shrink_to_fit(self) -> None:
        """Do nothing."""

    def dlpack_at(self, index: int) -> object:
        """Return a DLPack capsule of one value's memory."""
        return self[index].to_dlpack()

    def element_type_at(self, index: int) -> int:
        """Return ONNX's number for the dtype of one value."""
        return self[index].element_type()

    def bool_tensor_indices(self) -> list[int]:
        """Return the positions of boolean values."""
        boolean = int(helper.np_dtype_to_tensor_dtype(np.dtype(np.bool_)))
        return [i for i, value in enumerate(self) if value.element_type() == boolean]

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None = None) -> list[Any]:
        """Return a DLPack capsule of each value, or the results of ``to_tensor`` for them."""
        capsules = [value.to_dlpack() for value in self]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]


def receive(values: list[OrtValue], results: Sequence[Array]) -> None:
    """Store results in a list: appended if it is empty, else written to the memory of its values.

    So a list of one run can be that of the next, whose results then need no memory.

    Raises:
        DataError: the list has another number of values.
        ShapeError: a value has another dtype or shape; none is changed then.
    """
    if not values:
        values.extend(OrtValue(result) for result in results)
        return
    if len(values) != len(results):
        raise DataError(
            "The list for results has another number of values.",
            expected=f"{counted(len(results), 'value')}, or an empty list",
            received=counted(len(values), "value"),
        )
    for value, result in zip(values, results, strict=True):
        value.require_type_of(result)
    for value, result in zip(values, results, strict=True):
        value.update_inplace(result)

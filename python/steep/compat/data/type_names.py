"""PyTorch's dtypes, their names as scalar types, and ONNX's numbers for them."""

from __future__ import annotations

import onnx
import torch

from steep.errors import DataError

_KNOWN = {
    "Byte": (torch.uint8, onnx.TensorProto.UINT8),
    "Char": (torch.int8, onnx.TensorProto.INT8),
    "Short": (torch.int16, onnx.TensorProto.INT16),
    "Int": (torch.int32, onnx.TensorProto.INT32),
    "Long": (torch.int64, onnx.TensorProto.INT64),
    "Half": (torch.float16, onnx.TensorProto.FLOAT16),
    "Float": (torch.float32, onnx.TensorProto.FLOAT),
    "Double": (torch.float64, onnx.TensorProto.DOUBLE),
    "Bool": (torch.bool, onnx.TensorProto.BOOL),
    "ComplexFloat": (torch.complex64, onnx.TensorProto.COMPLEX64),
    "ComplexDouble": (torch.complex128, onnx.TensorProto.COMPLEX128),
    "BFloat16": (torch.bfloat16, onnx.TensorProto.BFLOAT16),
}
_OF_DTYPE = dict(_KNOWN.values())
_OF_NUMBER = {number: dtype for dtype, number in _KNOWN.values()}


def pytorch_type_to_onnx_dtype(
    dtype_or_scalar_type: torch.dtype | str,
) -> torch.onnx.TensorProtoDataType:
    """Return ONNX's number for a dtype, or for a name such as "Float". Raises DataError."""
    dtype = dtype_or_scalar_type
    if isinstance(dtype, str):
        dtype = pytorch_scalar_type_to_pytorch_dtype(dtype)
    if dtype not in _OF_DTYPE:
        raise _unknown(dtype, ", ".join(str(kind) for kind in _OF_DTYPE))
    return torch.onnx.TensorProtoDataType(_OF_DTYPE[dtype])


def pytorch_scalar_type_to_pytorch_dtype(dtype: str) -> torch.dtype:
    """Return the dtype of a name such as "Float". Raises DataError."""
    if dtype not in _KNOWN:
        raise _unknown(dtype, ", ".join(_KNOWN))
    return _KNOWN[dtype][0]


def onnx_dtype_to_pytorch_dtype(dtype: int) -> torch.dtype:
    """Return the dtype for ONNX's number. Raises DataError."""
    if int(dtype) not in _OF_NUMBER:
        raise _unknown(dtype, ", ".join(str(number) for number in _OF_NUMBER))
    return _OF_NUMBER[int(dtype)]


def _unknown(dtype: object, expected: str) -> DataError:
    return DataError("There is no such type.", expected=expected, received=repr(dtype))

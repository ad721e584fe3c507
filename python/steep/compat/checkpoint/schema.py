"""The tables of ONNX Runtime's checkpoint files: the fields, each with its slot.

The file is a FlatBuffer of a ``Checkpoint`` with the identifier ODTC. A field of a table is found
by its slot, so these numbers are the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

Slots = Mapping[str, int]

IDENTIFIER = b"ODTC"
VERSION = 2
READABLE = (1, 2)  # version 1 has no nominal states and no data in another file
GROUP = "group0"  # ONNX Runtime has no other group of parameters

TENSOR: Slots = {
    "name": 0,
    "doc_string": 1,
    "dims": 2,  # int64
    "data_type": 3,  # int32, ONNX's number
    "raw_data": 4,  # uint8
    "string_data": 5,
    "external_data_offset": 6,  # int64; -1: the bytes are in raw_data
}
MODULE_STATE: Slots = {
    "requires_grad_params": 0,
    "frozen_params": 1,
    "is_nominal_state": 2,
    "has_external_data": 3,
}
PARAMETER_STATE: Slots = {"param_name": 0, "momentums": 1}
OPTIMIZER_GROUP: Slots = {
    "group_name": 0,
    "step": 1,  # int64
    "initial_learning_rate": 2,  # float32
    "optimizer_states": 3,
}
PROPERTY: Slots = {"name": 0, "value": 1}  # of an int64, a float32 or a string
PROPERTY_BAG: Slots = {"ints": 0, "floats": 1, "strings": 2}
CHECKPOINT: Slots = {
    "version": 0,  # int32
    "module_state": 1,
    "optimizer_groups": 2,
    "property_bag": 3,
    "sealed": 4,  # Steep's: whether a seal follows (seal.py); other readers skip the field
}

_SIZES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16}
_SIZES |= {16: 2, 17: 1, 18: 1, 19: 1, 20: 1}  # bfloat16, and floats of 8 bits
_STRING = onnx.TensorProto.STRING


def dtype_of(code: int) -> np.dtype[Any] | str:
    """Return the dtype of a number of ``TensorDataType``, or what is wrong with it."""
    if code == _STRING:
        return "a tensor of strings"
    if code not in _SIZES:
        return f"the data type {code}"
    dtype: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    if dtype.itemsize != _SIZES[code]:  # of an onnx without ml_dtypes
        return f"the data type {onnx.TensorProto.DataType.Name(code)}, which needs a newer onnx"
    return dtype


def code_of(dtype: np.dtype[Any]) -> int | None:
    """Return the number of a dtype, or None if the format does not have it."""
    try:
        code = int(helper.np_dtype_to_tensor_dtype(dtype))
    except (KeyError, ValueError):
        return None
    return code if code in _SIZES else None

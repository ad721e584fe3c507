"""``onnxruntime.training._utils``: what scripts of ``ORTTrainer`` import from that module."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import onnx
import torch
from numpy.typing import DTypeLike

from steep.compat.data.type_names import onnx_dtype_to_pytorch_dtype, pytorch_type_to_onnx_dtype
from steep.errors import DataError, IoError

Function = TypeVar("Function", bound=Callable[..., Any])


def get_device_index(device: str | torch.device) -> int:
    """Return the number in a device such as "cuda:1"; 0 if there is none."""
    return torch.device(device).index or 0


def get_device_index_from_input(input: torch.Tensor | Sequence[torch.Tensor]) -> int:
    """Return the number of the device of a tensor, or of the first tensor of several."""
    tensor = input if isinstance(input, torch.Tensor) else input[0]
    return get_device_index(tensor.device)


def dtype_torch_to_numpy(torch_dtype: torch.dtype) -> DTypeLike:
    """Return NumPy's dtype; float16 for bfloat16. Raises DataError if there is none."""
    if torch_dtype == torch.bfloat16:
        return np.float16
    number = pytorch_type_to_onnx_dtype(torch_dtype)
    kind: DTypeLike = onnx.helper.tensor_dtype_to_np_dtype(int(number)).type
    return kind


def dtype_onnx_to_torch(onnx_type: int | str) -> torch.dtype:
    """Return PyTorch's dtype for ONNX's number or name, such as "FLOAT". Raises DataError."""
    kinds = onnx.TensorProto.DataType
    if not isinstance(onnx_type, str):
        return onnx_dtype_to_pytorch_dtype(onnx_type)
    if onnx_type.upper() not in kinds.keys():  # noqa: SIM118 (no mapping)
        raise DataError(
            "There is no such type.", expected=", ".join(kinds.keys()), received=onnx_type
        )
    return onnx_dtype_to_pytorch_dtype(kinds.Value(onnx_type.upper()))


def static_vars(**values: object) -> Callable[[Function], Function]:
    """Return a decorator that gives a function these attributes."""

    def decorate(function: Function) -> Function:
        function.__dict__.update(values)
        return function

    return decorate


def import_module_from_file(file_path: str, module_name: str | None = None) -> ModuleType:
    """Run a Python file as a module, by default of the file's name. Raises IoError without one."""
    name = module_name or os.path.basename(file_path).partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, file_path)
    if spec is None or spec.loader is None or not os.path.isfile(file_path):
        raise IoError("There is no such Python file.", node=file_path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def state_dict_model_key() -> str:
    """Return the key of the model's state in ``ORTTrainer.state_dict()``."""
    return "model"


def state_dict_optimizer_key() -> str:
    """Return the key of the optimizer's state there."""
    return "optimizer"

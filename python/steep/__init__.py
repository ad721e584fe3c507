"""Steep trains ONNX graphs with an ahead-of-time compiled engine.

Three doors lead in:

* ``ORTModule(module)`` runs a ``torch.nn.Module``'s forward and backward; the loop stays as it is.
* ``ORTTrainer`` and ``trainer(model, criterion, optimizer)`` compile a PyTorch model's whole step.
* ``TrainingSession("model.onnx", ...)`` trains an ONNX file, without PyTorch.

``check("model.onnx")`` lists what stands in the way of training a model.
PyTorch is imported only by the names that need it.
"""

from __future__ import annotations

import importlib
from typing import Any

from steep._steep import Tensor
from steep.errors import (
    CheckpointError,
    DataError,
    Error,
    InternalError,
    IoError,
    ModelError,
    OutOfMemoryError,
    ProviderError,
    ShapeError,
)

__version__ = "0.1.0"

# Names that need PyTorch: imported when first asked for.
_LAZY: dict[str, str] = {}

__all__ = [
    "CheckpointError",
    "DataError",
    "Error",
    "InternalError",
    "IoError",
    "ModelError",
    "OutOfMemoryError",
    "ProviderError",
    "ShapeError",
    "Tensor",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'steep' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

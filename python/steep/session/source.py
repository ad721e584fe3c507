"""The types of a model argument: a path, bytes, or a proto of the ``onnx`` package."""

from __future__ import annotations

import os
from typing import Any, Protocol


class ModelProto(Protocol):
    """``onnx.ModelProto``, without importing ``onnx``."""

    def SerializeToString(self) -> bytes:
        """Return the message in the wire format of Protocol Buffers."""


def source_of(model: str | os.PathLike[str] | bytes | ModelProto) -> Any:
    """Return the path as a string, or the model's bytes, for the engine."""
    if isinstance(model, (bytes, str, os.PathLike)):
        return model if isinstance(model, bytes) else os.fspath(model)
    return model.SerializeToString()

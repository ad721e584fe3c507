"""``model_for_inference``: a trained model as one runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx

from steep import _steep
from steep.session import _Proto, _source


def model_for_inference(model: str | os.PathLike[str] | bytes | _Proto) -> Any:
    """Copy a model that will run and not train on, with less to compute.

    BatchNormalization in training mode uses its running statistics, and Dropout is the identity.
    A BatchNormalization that alone reads a Conv, Gemm or MatMul is folded into the weights of that,
    where these and its own are constants in single or double precision. All else stays.

    >>> session.export_onnx("trained.onnx")
    >>> onnx.save(model_for_inference("trained.onnx"), "deployed.onnx")

    Args:
        model: path of the file, its bytes, or an ``onnx.ModelProto``.

    Returns:
        An ``onnx.ModelProto``, external data brought in if ``model`` is a path.

    Raises:
        ModelError: it is no ONNX model.
    """
    source = _source(model)
    folder = "" if isinstance(source, bytes) else str(Path(source).parent)
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    return onnx.load_model_from_string(_steep.model_for_inference(data, folder))

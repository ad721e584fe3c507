"""``model_for_inference``: converts a trained model for inference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import overload

from steep import _steep
from steep.session.source import ModelProto, source_of


@overload
def model_for_inference(
    model: str | os.PathLike[str] | bytes | ModelProto, path: None = None
) -> ModelProto: ...


@overload
def model_for_inference(
    model: str | os.PathLike[str], path: str | os.PathLike[str], *, external_data: bool = False
) -> None: ...


def model_for_inference(
    model: str | os.PathLike[str] | bytes | ModelProto,
    path: str | os.PathLike[str] | None = None,
    *,
    external_data: bool = False,
) -> ModelProto | None:
    """Copy a model for inference, with less to compute.

    BatchNormalization leaves training mode: it uses its running statistics, which do not change.
    Dropout becomes the identity. Both hold in branches, loops and functions too.
    If only a BatchNormalization reads a Conv, Gemm or MatMul, it is folded into the weights of that
    node; the weights of both must be constants in single or double precision. The rest of the model
    does not change.

    >>> session.export_onnx("trained.onnx")
    >>> onnx.save(model_for_inference("trained.onnx"), "deployed.onnx")

    Args:
        model: path of the file, its bytes, or an ``onnx.ModelProto``.
        path: file to write instead of returning the model. The data of a model of more than 2 GiB
            is written to ``PATH.data`` beside it. With ``path``, ``model`` has to be a path too.
        external_data: write the data to ``PATH.data`` for every size.

    Returns:
        An ``onnx.ModelProto``, which includes external data if ``model`` is a path; None with
        ``path``.

    Raises:
        ModelError: it is not an ONNX model, or it has more than 2 GiB and ``path`` is missing.
        IoError: it cannot be written; a file that was at ``path`` does not change.
        TypeError: ``path`` is given, and ``model`` is not a path.
    """
    import onnx  # not at the top: it doubles the import time of the package

    if path is not None:
        if not isinstance(model, str | os.PathLike):
            raise TypeError("model_for_inference(model, path): the model is also a path")
        _steep.write_for_inference(model, path, external_data)
        return None
    source = source_of(model)
    folder = "" if isinstance(source, bytes) else str(Path(source).parent)
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    result: ModelProto = onnx.load_model_from_string(_steep.model_for_inference(data, folder))
    return result

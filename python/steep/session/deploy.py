"""``model_for_inference``: a trained model as one runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from steep import _steep
from steep.session.source import ModelProto, source_of


def model_for_inference(
    model: str | os.PathLike[str] | bytes | ModelProto,
    path: str | os.PathLike[str] | None = None,
    *,
    external_data: bool = False,
) -> Any:
    """Copy a model that will run and not train on, with less to compute.

    BatchNormalization in training mode uses its running statistics, which stay as they are, and
    Dropout is the identity; so in branches, loops and functions.
    A BatchNormalization that alone reads a Conv, Gemm or MatMul is folded into the weights of that,
    where these and its own are constants in single or double precision. All else stays.

    >>> session.export_onnx("trained.onnx")
    >>> onnx.save(model_for_inference("trained.onnx"), "deployed.onnx")

    Args:
        model: path of the file, its bytes, or an ``onnx.ModelProto``.
        path: write it there instead of returning it; for a model of more than 2 GiB, its data is
            in ``PATH.data`` beside it. ``model`` is a path, too, then.
        external_data: have its data there in any case.

    Returns:
        An ``onnx.ModelProto``, external data brought in if ``model`` is a path; None with ``path``.

    Raises:
        ModelError: it is no ONNX model, or one of more than 2 GiB without ``path``.
        IoError: it cannot be written; then what was at ``path`` is as it was.
        TypeError: ``path`` with a model that is none.
    """
    import onnx  # here: the package is imported in half of the time without it

    if path is not None:
        if not isinstance(model, str | os.PathLike):
            raise TypeError("model_for_inference(model, path): the model is also a path")
        return _steep.write_for_inference(model, path, external_data)
    source = source_of(model)
    folder = "" if isinstance(source, bytes) else str(Path(source).parent)
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    return onnx.load_model_from_string(_steep.model_for_inference(data, folder))

"""Writes parameters of blocks to checkpoints, and reads them back into a model."""

from __future__ import annotations

import os

import onnx
from onnx import numpy_helper

from steep.compat import state_file
from steep.compat.checkpoint import files
from steep.compat.onnxblock.artifacts import state_of
from steep.compat.onnxblock.models import Parameters
from steep.errors import CheckpointError, DataError


def save_checkpoint(
    parameters: Parameters,
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Write a checkpoint of the parameters that ``TrainingBlock.parameters`` returned.

    Args:
        parameters: trained parameters, and others.
        path_to_checkpoint: path of the file.
        nominal_checkpoint: write only names, dtypes and shapes.

    Raises:
        DataError: a parameter has a dtype that a checkpoint does not support.
        IoError: the file cannot be written; the old one stays.
    """
    state = state_of(parameters)
    state.nominal = bool(nominal_checkpoint)
    state_file.write(path_to_checkpoint, files.encode(state, with_optimizer=False))


def load_checkpoint_to_model(
    path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto
) -> None:
    """Set initializers of a model to the values of a checkpoint's parameters of the same names.

    Raises:
        CheckpointError: the file is damaged or nominal, or an initializer has another type;
            the model then does not change.
        DataError: no initializer has the name of a parameter.
        IoError: the file cannot be read.
    """
    where = os.fspath(path_to_checkpoint)
    state = files.load(path_to_checkpoint)
    if state.nominal:
        raise CheckpointError("A nominal checkpoint has no values.", node=where)
    pairs = {
        tensor.name: (tensor, numpy_helper.from_array(state.values[tensor.name], tensor.name))
        for tensor in model.graph.initializer
        if tensor.name in state.values
    }
    if not pairs:
        raise DataError(
            "The model has none of the checkpoint's parameters as an initializer.",
            node=where,
            expected=", ".join(state.values),
            received=", ".join(tensor.name for tensor in model.graph.initializer) or "none",
        )
    for name, (old, new) in pairs.items():
        if (old.data_type, list(old.dims)) != (new.data_type, list(new.dims)):
            raise CheckpointError(
                "A parameter of the checkpoint has another type in the model.",
                node=name,
                expected=f"{onnx.TensorProto.DataType.Name(old.data_type)}{list(old.dims)}",
                received=f"{onnx.TensorProto.DataType.Name(new.data_type)}{list(new.dims)}",
            )
    for old, new in pairs.values():
        old.CopyFrom(new)

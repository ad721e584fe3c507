"""``generate_artifacts``: makes the files of on-device training from a forward model."""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message
from onnx import numpy_helper

from steep.compat import state_file
from steep.compat.checkpoint import files as checkpoint_files
from steep.compat.onnxblock import losses as block_losses, optimizers as block_optimizers
from steep.compat.onnxblock.base import Block, base, empty_base
from steep.compat.onnxblock.blocks import PassThrough
from steep.compat.onnxblock.models import Parameters, TrainingBlock
from steep.compat.refusals import NotOffered
from steep.errors import DataError, IoError, ModelError

log = logging.getLogger("steep")

_OLDEST = 12  # the first opset with SoftmaxCrossEntropyLoss


class LossType(enum.Enum):
    """Losses, each as PyTorch's class of this name."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(enum.Enum):
    """Optimizers, each as the block of this name in ``onnxblock.optim``."""

    AdamW = 1
    SGD = 2


class OptimizationStyle(enum.Enum):
    """When ONNX Runtime optimises a model of its ORT format, which Steep does not have."""

    Fixed = 0
    Runtime = 1


class _WithLoss(TrainingBlock):
    def __init__(self, loss: Block, more: Sequence[str]) -> None:
        super().__init__()
        self._loss, self._more = loss, tuple(more)

    def build(self, *names: str) -> tuple[str, ...]:
        result = self._loss(*names)
        outputs = (result,) if isinstance(result, str) else tuple(result)
        return (*outputs, *(name for name in self._more if name not in outputs))


def generate_artifacts(  # noqa: PLR0917 (ONNX Runtime's order)
    model: onnx.ModelProto | str | os.PathLike[str],
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | Block | None = None,
    optimizer: OptimType | Block | None = None,
    artifact_directory: str | bytes | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
) -> None:
    """Write the files for ``training.api``: models and a checkpoint.

    ``PREFIXtraining_model.onnx`` and ``PREFIXeval_model.onnx`` are the model with the loss, whose
    parameters are inputs; the second has no dropout, and normalises by running statistics.
    ``PREFIXoptimizer_model.onnx`` is an optimizer's step in ONNX's operators
    (``compat/onnxblock/optimizers.py``), and ``PREFIXcheckpoint`` has the parameters. Everything is
    made before the first file is written, and each file is replaced as a whole.

    >>> generate_artifacts(onnx.load("mlp.onnx"), requires_grad=["fc1.weight", "fc1.bias"],
    ...                    loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
    ...                    artifact_directory="artifacts")

    Args:
        model: a model or its path, of opset 12 or newer.
        requires_grad: initializers that are trained: float32 or float64.
        frozen_params: initializers that are parameters and do not change.
        loss: a loss, or an ``onnxblock.Block`` of one; None: the first output is the loss.
        optimizer: an optimizer, or a block of one; None: no optimizer model is written.
        artifact_directory: folder of the files; by default the current one.
        prefix: prefix of the files' names.
        ort_format: must be False: there is one format.
        custom_op_library: must be None; ``steep.register_op`` adds operators.
        additional_output_names: values of the model that calls return besides the loss.
        nominal_checkpoint: also write ``PREFIXnominal_checkpoint``, with names and shapes only.
        loss_input_names: arguments of the loss; by default all outputs of the model.

    Raises:
        ModelError: a name is not one of the model's, or a model is not valid.
        DataError: no parameter is trained, or an argument has a wrong type.
        ShapeError: the loss does not have one element.
        NotOffered: ``ort_format`` or ``custom_op_library`` is set.
        IoError: a file cannot be read or written.
    """
    _refuse(ort_format, custom_op_library)
    loss_block, optimizer_block = _loss(loss), _optimizer(optimizer)
    trained_names = _name_list("requires_grad", requires_grad)
    frozen_names = _name_list("frozen_params", frozen_params)
    both = sorted(set(trained_names) & set(frozen_names))
    if both:
        raise DataError(
            "A parameter is both trained and frozen.",
            node=both[0],
            received="both: " + ", ".join(both),
        )
    proto = _load(model)
    more = _name_list("additional_output_names", additional_output_names)
    loss_inputs = _name_list("loss_input_names", loss_input_names)
    block = _WithLoss(loss_block, more)
    for name in trained_names:
        block.requires_grad(name)
    for name in frozen_names:
        block.requires_grad(name, False)
    with base(proto):
        block(*(loss_inputs or [output.name for output in proto.graph.output]))
    training, evaluation = block.to_model_proto()
    state = state_of(block.parameters())
    files = {
        "training_model.onnx": serialise(training),
        "eval_model.onnx": serialise(evaluation),
        "checkpoint": checkpoint_files.encode(state, with_optimizer=False),
    }
    if optimizer_block is not None:
        opset = next(o.version for o in proto.opset_import if not o.domain)
        with empty_base(max(opset, 15)):  # the first opset with CastLike
            optimizer_block(block.parameters())
        files["optimizer_model.onnx"] = serialise(optimizer_block.to_model_proto())
    if nominal_checkpoint:
        state.nominal = True
        files["nominal_checkpoint"] = checkpoint_files.encode(state, with_optimizer=False)
    folder = Path(os.fsdecode(artifact_directory or "."))
    if not folder.is_dir():
        raise IoError(
            "The folder for the training artifacts does not exist.",
            node=str(folder),
            remedy="create it, or name another with artifact_directory",
        )
    for name in files:  # check all before writing the first
        state_file.require_writable(folder / f"{prefix}{name}")
    for name, content in files.items():
        state_file.write(folder / f"{prefix}{name}", content)
        log.info("%s: %d bytes", folder / f"{prefix}{name}", len(content))


def state_of(parameters: Parameters) -> state_file.TrainingState:
    """Return the state of the parameters of a ``TrainingBlock``. Raises DataError."""
    values = {
        tensor.name: state_file.storable(tensor.name, numpy_helper.to_array(tensor))
        for part in parameters
        for tensor in part
    }
    return state_file.TrainingState(values, [tensor.name for tensor in parameters[0]])


def serialise(model: onnx.ModelProto) -> bytes:
    """Return a model's bytes. Raises ModelError if they are too many for a file."""
    try:
        content: bytes = model.SerializeToString()
        return content
    except ValueError as error:
        raise ModelError(
            "A model is too large for one file.",
            expected="less than 2 GiB beside its parameters",
            received=str(error),
            remedy="name large initializers in requires_grad or frozen_params",
        ) from error


def _load(model: object) -> onnx.ModelProto:
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        model = parse(path)
        try:
            onnx.load_external_data_for_model(model, str(path.parent))
        except (onnx.checker.ValidationError, OSError, ValueError) as error:
            raise IoError(
                "The data beside a model cannot be read.",
                node=str(path),
                received=str(error).partition("\n")[0],
            ) from error
    if not isinstance(model, onnx.ModelProto):
        raise DataError(
            "The argument is not a model.",
            expected="an onnx.ModelProto or the path of one",
            received=type(model).__name__,
        )
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise DataError(
                "The data of a tensor is not in the model.",
                node=tensor.name,
                received="the name of a file beside it",
                remedy="give the model's path, or onnx.load it with its data",
            )
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST:
        raise ModelError(
            "The model is of an old opset.",
            expected=f"{_OLDEST} or newer",
            received=str(opset),
            remedy="onnx.version_converter.convert_version(model, 17)",
        )
    return model


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in a message: in initializers, attributes, bodies and functions."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _tensors(inner)


def parse(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return the model of a file. Raises IoError, and ModelError if it is no model."""
    content = state_file.read(path)
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        raise ModelError(
            "The file is not an ONNX model.", node=os.fspath(path), received=str(error)
        ) from error
    if not model.HasField("graph"):
        raise ModelError(
            "The file is not an ONNX model.", node=os.fspath(path), received="no graph"
        )
    return model


def _refuse(ort_format: bool, custom_op_library: str | os.PathLike[str] | None) -> None:
    if ort_format:
        raise NotOffered(
            "The ORT format is not supported.",
            node="ort_format",
            expected="False",
            received=repr(ort_format),
            remedy="leave it out: the files are ONNX models",
        )
    if custom_op_library is not None:
        raise NotOffered(
            "Libraries of custom operators are not loaded.",
            node="custom_op_library",
            received=os.fsdecode(custom_op_library),
            remedy="steep.register_op(function, gradient=…) (docs/your_own.md)",
        )


def _loss(loss: object) -> Block:
    if loss is None:
        return PassThrough()
    if isinstance(loss, LossType):
        block: Block = getattr(block_losses, loss.name)()
        return block
    if isinstance(loss, Block):
        return loss
    raise DataError(
        "There is no such loss.",
        expected="a LossType, an onnxblock.Block, or None",
        received=repr(loss),
        remedy="LossType." + ", LossType.".join(kind.name for kind in LossType),
    )


def _optimizer(optimizer: object) -> Any:
    if optimizer is None:
        return None
    if isinstance(optimizer, OptimType):
        return getattr(block_optimizers, optimizer.name)()
    if isinstance(optimizer, Block) and hasattr(optimizer, "to_model_proto"):
        return optimizer
    raise DataError(
        "There is no such optimizer.",
        expected="an OptimType, a block of onnxblock.optim, or None",
        received=repr(optimizer),
        remedy="OptimType." + ", OptimType.".join(kind.name for kind in OptimType),
    )


def _name_list(argument: str, names: Sequence[str] | None) -> list[str]:
    if isinstance(names, (str, bytes)) or not all(isinstance(name, str) for name in names or ()):
        raise DataError(
            "An argument is not a list of names.",
            node=argument,
            expected="a list of str",
            received=repr(names),
        )
    return list(names or ())

"""``onnxruntime.training.checkpoint``: functions for checkpoints of an ``ORTTrainer``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steep import _steep
from steep.compat.trainer.described_trainer import ORTTrainer, read_checkpoint
from steep.errors import DataError, IoError

PathLike = str | os.PathLike[str]


def aggregate_checkpoints(paths: Sequence[PathLike], pytorch_format: bool = True) -> dict[str, Any]:
    """Return the state in a trainer's checkpoint; a trainer is one process, and has one file.

    Args:
        paths: a list of one file that ``ORTTrainer.save_checkpoint`` wrote.
        pytorch_format: return only the model's state, as its ``state_dict``.

    Raises:
        DataError: it is not one path.
        CheckpointError: it is not such a file, or damaged.
        FileNotFoundError: there is no file.
    """
    if isinstance(paths, (str, os.PathLike)) or len(paths) != 1:
        raise DataError(
            "A checkpoint is one file: a trainer is one process.",
            expected="a list of 1 path",
            received=repr(paths),
        )
    state, _ = read_checkpoint(paths[0])
    weights: dict[str, Any] = state["model"]
    return weights if pytorch_format else state


def experimental_state_dict(
    ort_trainer: ORTTrainer, include_optimizer_state: bool = True
) -> dict[str, Any]:
    """Return ``ORTTrainer.state_dict()``, or only the model's ``state_dict``.

    Emits a DeprecationWarning. Raises DataError if ``ort_trainer`` is no ORTTrainer.
    """
    _deprecated("experimental_state_dict", "state_dict", ort_trainer)
    return ort_trainer.state_dict(pytorch_format=not include_optimizer_state)


def experimental_load_state_dict(
    ort_trainer: ORTTrainer, state_dict: Mapping[str, Any], strict: bool = False
) -> None:
    """Load a result of ``experimental_state_dict``, of either kind.

    Emits a DeprecationWarning. Raises DataError if ``ort_trainer`` is no ORTTrainer, KeyError for a
    missing entry, and errors of ``torch.nn.Module.load_state_dict``.
    """
    _deprecated("experimental_load_state_dict", "load_state_dict", ort_trainer)
    if "train_step_info" in state_dict:
        ort_trainer.load_state_dict(state_dict, strict)
    else:
        ort_trainer.model.load_state_dict(state_dict, strict=strict)


def experimental_save_checkpoint(
    ort_trainer: ORTTrainer,
    checkpoint_dir: PathLike,
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: Mapping[str, Any] | None = None,
    include_optimizer_state: bool = True,
) -> None:
    """Write ``PREFIX.ort.pt`` to a folder; an existing file is replaced as a whole.

    Args:
        ort_trainer: the trainer whose state is saved.
        checkpoint_dir: an existing folder.
        checkpoint_prefix: prefix of the file's name.
        checkpoint_state_dict: further data, which ``experimental_load_checkpoint`` returns.
        include_optimizer_state: save moments too.

    Raises:
        DataError: ``ort_trainer`` is no ORTTrainer.
        IoError: the folder does not exist, or the file cannot be written; then the old one stays.
    """
    _deprecated("experimental_save_checkpoint", "save_checkpoint", ort_trainer)
    if not Path(checkpoint_dir).is_dir():
        raise IoError(
            "The folder for a checkpoint does not exist.",
            node=os.fspath(checkpoint_dir),
            remedy="create it first",
        )
    content = ort_trainer._checkpoint(checkpoint_state_dict, include_optimizer_state)
    _steep.write_file(str(_file(checkpoint_dir, checkpoint_prefix)), content)


def experimental_load_checkpoint(
    ort_trainer: ORTTrainer,
    checkpoint_dir: PathLike,
    checkpoint_prefix: str = "ORT_checkpoint",
    strict: bool = False,
) -> dict[str, Any]:
    """Load ``PREFIX.ort.pt``; return the ``checkpoint_state_dict`` that was saved.

    Raises:
        DataError: ``ort_trainer`` is no ORTTrainer.
        CheckpointError: the file is damaged, or one of ONNX Runtime.
        FileNotFoundError: there is no file.
    """
    _deprecated("experimental_load_checkpoint", "load_checkpoint", ort_trainer)
    return ort_trainer.load_checkpoint(_file(checkpoint_dir, checkpoint_prefix), strict=strict)


def _file(folder: PathLike, prefix: str) -> Path:
    return Path(folder) / f"{prefix}.ort.pt"


def _deprecated(name: str, instead: str, trainer: object) -> None:
    if not isinstance(trainer, ORTTrainer):
        raise DataError(
            f"{name} is for an ORTTrainer of onnxruntime.training.",
            expected="an ORTTrainer with a model_desc",
            received=type(trainer).__name__,
            remedy="other trainers have state_dict and load_state_dict of their own",
        )
    warnings.warn(f"{name}: use ORTTrainer.{instead}", DeprecationWarning, stacklevel=3)

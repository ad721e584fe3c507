"""Reads and writes checkpoints of on-device training, in either of two formats.

One is that of ONNX Runtime, which its package reads on devices too. The other, a safetensors file
(``compat/state_file.py``), is Steep's own: it has no limit of 2 GiB and needs no further package.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from steep._steep import Limits
from steep.compat import state_file
from steep.compat.checkpoint import reader, writer
from steep.compat.state_file import TrainingState
from steep.errors import CheckpointError, DataError, InstallationError, counted

log = logging.getLogger("steep")

ONNX_RUNTIME, SAFETENSORS = "onnxruntime", "safetensors"


def load(uri: str | os.PathLike[str]) -> TrainingState:
    """Return the content of a file of either format.

    Raises:
        CheckpointError: it is damaged, of another kind, or larger than ``steep.Limits``.
        InstallationError: it is of ONNX Runtime's format, and ``flatbuffers`` is not installed.
        IoError: it cannot be read.
    """
    path = Path(os.fspath(uri))
    most, size = Limits().max_bytes, 0
    with contextlib.suppress(OSError):  # then reading it says what is wrong
        size = path.stat().st_size
    if size > most:
        raise CheckpointError(
            "A checkpoint is too large.",
            node=str(path),
            expected=f"at most {most} bytes, max_bytes of steep.Limits",
            received=counted(size, "byte"),
            remedy="set the environment variable STEEP_MAX_BYTES",
        )
    return decode(state_file.read(path), str(path), path.with_name(f"{path.name}.data"))


def decode(content: bytes, where: str, data: Path | None = None) -> TrainingState:
    """Return the content of the bytes of a file of either format.

    Args:
        content: the bytes.
        where: the file, for errors.
        data: path of the file with the data of tensors, if a checkpoint of ONNX Runtime has one.

    Raises:
        CheckpointError: they are damaged, or of another kind of file.
        InstallationError: they are of ONNX Runtime's format, and ``flatbuffers`` is not installed.
        IoError: the file of data cannot be read.
    """
    if reader.is_old_format(content):
        return reader.decode(content, where, data)
    return state_file.decode(content, where)


def encode(state: TrainingState, with_optimizer: bool, file_format: str | None = None) -> bytes:
    """Return the bytes of a file.

    Args:
        state: the content.
        with_optimizer: whether to save the optimizer's state too.
        file_format: "onnxruntime" or "safetensors". None is the first if it can hold the state and
            ``flatbuffers`` is installed, and else the second, with a log message.

    Raises:
        DataError: there is no such format, or it cannot hold the state.
        InstallationError: "onnxruntime" was requested, and ``flatbuffers`` is not installed.
    """
    if file_format not in (None, ONNX_RUNTIME, SAFETENSORS):
        raise DataError(
            "There is no such format of checkpoints.",
            node="file_format",
            expected=f"{ONNX_RUNTIME!r}, {SAFETENSORS!r} or None",
            received=repr(file_format),
        )
    if file_format != SAFETENSORS:
        try:
            return writer.encode(state, with_optimizer)
        except (DataError, InstallationError) as error:
            if file_format is not None:
                raise
            log.warning(
                "A checkpoint is written as a safetensors file, which ONNX Runtime does not read: "
                "%s %s",
                error.what,
                error.remedy if isinstance(error, InstallationError) else error.received,
            )
    for name, array in state.values.items():
        state_file.storable(name, array)
    return state_file.encode(state, with_optimizer)

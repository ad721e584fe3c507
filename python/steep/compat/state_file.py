"""Steep's own file of a training state: parameters, an optimizer's state, properties.

It is a safetensors file: a header in JSON, then the tensors' bytes. Other data is in the header's
metadata, with a SHA-256 of everything else, so that a damaged file is detected before any of it is
used. Nothing in it can be executed. ``compat/checkpoint`` has ONNX Runtime's format.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from steep._steep import Limits, write_file
from steep.errors import CheckpointError, DataError, IoError, counted

Property = int | float | str

_FORMAT = "steep.compat.state/1"
_MAX_HEADER = 64 << 20
_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_REMEDY = "load a file that generate_artifacts or CheckpointState.save_checkpoint wrote"


@dataclasses.dataclass
class OptimizerState:
    """The state of an optimizer between steps.

    Attributes:
        step: number of steps so far.
        lr, initial_lr: the present learning rate, and the initial one of a schedule.
        moments: arrays by the names of the optimizer model's inputs.
    """

    step: int = 0
    lr: float = 1e-3
    initial_lr: float = 1e-3
    moments: dict[str, np.ndarray[Any, Any]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class TrainingState:
    """The content of a checkpoint.

    Attributes:
        values: parameters by name, each contiguous and writable, in the order of the file.
        trained: names of the parameters that an optimizer updates.
        properties: numbers and text of the user.
        optimizer: the optimizer's state; None if none was saved.
        nominal: whether the values are placeholders, with only names, dtypes and shapes.
        draws: number of runs so far, which determines the random numbers of dropout.
    """

    values: dict[str, np.ndarray[Any, Any]]
    trained: list[str]
    properties: dict[str, Property] = dataclasses.field(default_factory=dict)
    optimizer: OptimizerState | None = None
    nominal: bool = False
    draws: int = 0


def storable(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array contiguous, in native byte order. Raises DataError for other dtypes."""
    if array.dtype.newbyteorder("=") not in _NAMES:
        raise DataError(
            "A tensor has a dtype that a checkpoint cannot hold.",
            node=name,
            expected=", ".join(str(np.dtype(dtype)) for dtype in _DTYPES.values()),
            received=str(array.dtype),
            remedy="leave it out of requires_grad and frozen_params: it then stays in the model",
        )
    return np.require(array, array.dtype.newbyteorder("="), ["C", "O", "W"])


def checked_property(name: object, value: object) -> Property:
    """Return the value of a property. Raises DataError if name or value is not supported."""
    fits = isinstance(name, str) and name != "" and not isinstance(value, bool)
    if isinstance(value, int):
        fits = fits and -(2**63) <= value < 2**63
    if fits and isinstance(value, (int, float, str)):
        return value
    raise DataError(
        "A property of a checkpoint has another type.",
        node=str(name),
        expected="a name that is no empty string, and an int of 64 bits, a float or a str",
        received=f"{value!r} ({type(value).__name__})",
    )


def blank(shape: Sequence[int], dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """Return zeros. Raises ValueError above ``steep.Limits``, or for negative extents."""
    size, most = math.prod(shape) * np.dtype(dtype).itemsize, Limits().max_bytes
    if size > most:
        raise ValueError(
            f"a tensor of {counted(size, 'byte')}, more than max_bytes of steep.Limits, {most}"
        )
    return np.zeros(shape, dtype)


def encode(state: TrainingState, with_optimizer: bool) -> bytes:
    """Return the bytes of the file."""
    optimizer = state.optimizer if with_optimizer else None
    record: dict[str, Any] = {
        "trained": state.trained,
        "nominal": state.nominal,
        "draws": state.draws,
        "properties": {name: _property_text(value) for name, value in state.properties.items()},
    }
    tensors = {f"parameter/{name}": array for name, array in state.values.items()}
    if state.nominal:
        record["shapes"] = [
            [name, _NAMES[array.dtype], list(array.shape)] for name, array in state.values.items()
        ]
        tensors = {}
    if optimizer is not None:
        record["optimizer"] = {
            "step": optimizer.step,
            "lr": optimizer.lr.hex(),
            "initial_lr": optimizer.initial_lr.hex(),
        }
        tensors |= {f"moment/{name}": array for name, array in optimizer.moments.items()}
    header: dict[str, Any] = {"__metadata__": {"format": _FORMAT, "state": json.dumps(record)}}
    begin = 0
    for name, array in tensors.items():
        end = begin + array.nbytes
        entry = {"dtype": _NAMES[array.dtype], "shape": list(array.shape)}
        header[name] = {**entry, "data_offsets": [begin, end]}
        begin = end
    data = [array.reshape(-1).view(np.uint8).data for array in tensors.values()]
    header["__metadata__"]["sha256"] = _digest(header, data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def decode(content: bytes, where: str) -> TrainingState:
    """Return the content of a file's bytes.

    Raises:
        CheckpointError: they are damaged, or of another kind of file.
    """
    header, data = _parts(content, where)
    try:
        tensors = {
            name: _tensor(entry, data) for name, entry in header.items() if name != "__metadata__"
        }
        record = json.loads(header["__metadata__"]["state"])
        if record["nominal"]:
            values = {name: blank(shape, _DTYPES[d]) for name, d, shape in record["shapes"]}
        else:
            values = _under("parameter/", tensors)
        properties = {name: _property(pair) for name, pair in record["properties"].items()}
        trained, draws = list(record["trained"]), int(record["draws"])
        state = TrainingState(values, trained, properties, None, record["nominal"], draws)
        if not set(state.trained) <= set(values):
            raise ValueError("a trained parameter has no value")
        if "optimizer" in record:
            numbers = record["optimizer"]
            state.optimizer = OptimizerState(
                int(numbers["step"]),
                learning_rate(numbers["lr"]),
                learning_rate(numbers["initial_lr"]),
                _under("moment/", tensors),
            )
        counts = [draws, state.optimizer.step if state.optimizer else 0]
        if not all(0 <= count < 2**62 for count in counts):
            raise ValueError("a count is out of range")
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise _broken(where, f"a header that does not fit: {error}") from error
    return state


def learning_rate(text: str) -> float:
    """Return a learning rate that a file has in hexadecimal.

    Raises ValueError or OverflowError: it is no number, negative or not finite.
    """
    rate = float.fromhex(text)
    if not (math.isfinite(rate) and rate >= 0):
        raise ValueError(f"the learning rate {rate}")
    return rate


def read(uri: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file.

    Raises:
        IoError: there is none, or it cannot be read.
        CheckpointError: it is a folder, a device or a FIFO.
    """
    path = Path(os.fspath(uri))
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode) and (path / "manifest.json").exists():
            raise CheckpointError(
                "This is the checkpoint of a steep.TrainingSession.",
                node=str(path),
                expected="a file",
                received="a folder with a manifest.json",
                remedy="TrainingSession.load_checkpoint loads it",
            )
        if not stat.S_ISREG(mode):
            raise _broken(str(path), "not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise IoError(
            "A file cannot be read.",
            node=str(path),
            received=error.strerror or str(error),
            remedy="check the path; generate_artifacts writes the training artifacts",
        ) from error


def require_writable(path: Path) -> None:
    """Raise IoError if ``write`` could not replace or create this file."""
    replaces = path.exists()
    if (replaces and not path.is_file()) or not os.access(path.parent, os.W_OK):
        raise IoError(
            "A file cannot be written.",
            node=str(path),
            expected="a regular file or none, in a folder that may be written to",
            received="something else in its place" if replaces else "no permission",
        )


def write(uri: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file as a whole, or create it. Raises IoError; then the old file stays."""
    write_file(os.fspath(uri), content)


def _parts(content: bytes, where: str) -> tuple[dict[str, Any], memoryview]:
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(len(content) - 8, _MAX_HEADER):
        raise _broken(where, f"{counted(len(content), 'byte')} without a whole header")
    try:
        header = json.loads(content[8 : 8 + size])
        metadata = header["__metadata__"]
        is_current, digest = metadata["format"] == _FORMAT, metadata.pop("sha256", "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken(where, "a header that cannot be parsed") from error
    if not is_current:
        raise _broken(where, f"a file of the format {metadata['format']!r}")
    data = memoryview(content)[8 + size :]
    if digest != _digest(header, [data]):
        raise _broken(where, "bytes that differ from those that were written")
    return header, data


def _digest(header: Mapping[str, Any], data: Sequence[memoryview]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for part in data:
        digest.update(part)
    return digest.hexdigest()


def _tensor(entry: Mapping[str, Any], data: memoryview) -> np.ndarray[Any, Any]:
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), [int(extent) for extent in entry["shape"]]
    begin, end = entry["data_offsets"]
    if min([*shape, begin], default=0) < 0 or end > len(data):
        raise ValueError("a tensor lies outside of the file")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError("a tensor's bytes are not those of its shape")
    array: np.ndarray[Any, Any] = np.frombuffer(data[begin:end], dtype).reshape(shape).copy()
    return array


def _under(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {n[len(prefix) :]: array for n, array in tensors.items() if n.startswith(prefix)}


def _property_text(value: Property) -> list[str]:
    if isinstance(value, float):  # also for NumPy's floats, which JSON does not support
        return ["float", float(value).hex()]
    return ["int" if isinstance(value, int) else "str", str(value)]


def _property(pair: list[str]) -> Property:
    kind, text = pair
    if kind == "float":
        return float.fromhex(text)
    if kind not in ("int", "str"):
        raise ValueError(f"a property of the kind {kind}")
    return int(text) if kind == "int" else text


def _broken(where: str, received: str) -> CheckpointError:
    return CheckpointError(
        "The file is not a training checkpoint.",
        node=where,
        expected="a file of CheckpointState",
        received=received,
        remedy=_REMEDY,
    )

"""Reads checkpoints of ONNX Runtime's format."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from steep._steep import Limits
from steep.compat.checkpoint import schema
from steep.compat.checkpoint.seal import open_seal
from steep.compat.checkpoint.tables import Buffer, CheckedTable
from steep.compat.state_file import OptimizerState, Property, TrainingState, learning_rate
from steep.errors import IoError, counted

Array = np.ndarray[Any, Any]

_MOST_EXTENTS = 32  # of NumPy 1
_MOST_STEPS = 2**62


def is_old_format(content: bytes) -> bool:
    """Return whether a file begins as one of ONNX Runtime's format."""
    return content[4:8] == schema.IDENTIFIER


def decode(content: bytes, where: str, data: Path | None = None) -> TrainingState:
    """Return the content of a file of ONNX Runtime's format.

    Args:
        content: the bytes.
        where: the file, for errors.
        data: path of the file with the data of tensors, if the checkpoint says that there is one.

    Raises:
        CheckpointError: the bytes are damaged, or need a file of data that is missing or too short.
        InstallationError: the package ``flatbuffers`` is not installed.
        IoError: the file of data cannot be read.
    """
    try:
        body, extras = open_seal(content)
    except ValueError as error:
        raise Buffer(b"", where).wrong("seal", "the bytes that were written", str(error)) from error
    root = Buffer(body, where).root(schema.CHECKPOINT)
    version = root.integer("version", "int32")
    if version not in schema.READABLE:
        raise root.wrong("version", "1 or 2", str(version), remedy="save it with version 1.19.2")
    if root.flag("sealed") != (extras is not None):
        raise root.wrong("seal", "the end that was written with the file", "no end, or another")
    state = _Reader(root, data).state()
    if extras is not None:
        try:
            _complete(state, extras)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise root.wrong("seal", "what Steep writes there", str(error)) from error
    return state


class _Reader:
    def __init__(self, root: CheckedTable, data: Path | None) -> None:
        self._root, self._buffer = root, root.buffer
        self._data = data
        self._nominal = False
        self._external: _External | None = None
        self._room = Limits().max_bytes

    def state(self) -> TrainingState:
        """Return the state. Raises as ``decode`` does."""
        state = TrainingState({}, [])
        module = self._root.table("module_state", schema.MODULE_STATE)
        try:
            if module is not None:
                self._read_module(module, state)
            state.optimizer = self._optimizer()
        finally:
            if self._external is not None:
                self._external.close()
        state.properties = self._properties()
        return state

    def _read_module(self, module: CheckedTable, state: TrainingState) -> None:
        self._nominal = state.nominal = module.flag("is_nominal_state")
        if module.flag("has_external_data"):
            if self._data is None:
                raise module.wrong(
                    "has_external_data",
                    "a file of data beside the checkpoint",
                    "bytes without a path",
                    remedy="CheckpointState.load_checkpoint(path)",
                )
            self._external = _External(self._data, module)
        for kind in ("requires_grad_params", "frozen_params"):
            tensors = module.tables(kind, schema.TENSOR)
            if tensors is None:
                raise module.wrong(kind, "a vector of tensors", "none")
            for tensor in tensors:
                name = self._new_name(tensor, "name", state.values)
                state.values[name] = self._tensor(tensor)
                if kind == "requires_grad_params":
                    state.trained.append(name)

    def _optimizer(self) -> OptimizerState | None:
        groups = self._root.tables("optimizer_groups", schema.OPTIMIZER_GROUP)
        if not groups:
            return None
        name = groups[0].name("group_name")
        if len(groups) > 1 or name != schema.GROUP:
            received = f"{counted(len(groups), 'group')}, the first of which is {name!r}"
            raise self._root.wrong("optimizer_groups", f"one, {schema.GROUP!r}", received)
        (group,) = groups
        step = group.integer("step", "int64")
        rate = group.real("initial_learning_rate")
        if not 0 <= step < _MOST_STEPS:
            raise group.wrong("step", "a count", str(step))
        if not (math.isfinite(rate) and rate >= 0):
            raise group.wrong("initial_learning_rate", "0 or more, finite", str(rate))
        states = group.tables("optimizer_states", schema.PARAMETER_STATE)
        if states is None:
            raise group.wrong("optimizer_states", "a vector of tables", "none")
        moments: dict[str, Array] = {}
        parameters: set[str] = set()
        self._nominal = False
        for each in states:
            parameter = self._new_name(each, "param_name", parameters)
            parameters.add(parameter)
            tensors = each.tables("momentums", schema.TENSOR)
            if tensors is None:
                raise each.wrong("momentums", "a vector of tensors", "none")
            for tensor in tensors:
                moment = f"{tensor.name('name')}/{parameter}"
                if moment in moments:
                    raise tensor.wrong("name", "names that differ", f"{moment!r} twice")
                moments[moment] = self._tensor(tensor)
        # The format has no present rate; ONNX Runtime begins with its default too.
        return OptimizerState(step, initial_lr=rate, moments=moments)

    def _properties(self) -> dict[str, Property]:
        bag = self._root.table("property_bag", schema.PROPERTY_BAG)
        properties: dict[str, Property] = {}
        if bag is None:
            return properties
        kinds: dict[str, Callable[[CheckedTable], Property]] = {
            "ints": lambda table: table.integer("value", "int64"),
            "floats": lambda table: table.real("value"),
            "strings": lambda table: table.name("value"),
        }
        for kind, value in kinds.items():
            for table in bag.tables(kind, schema.PROPERTY) or []:
                name = self._new_name(table, "name", properties)
                properties[name] = value(table)
        return properties

    def _new_name(
        self, table: CheckedTable, field: str, others: Mapping[str, object] | set[str]
    ) -> str:
        name = table.name(field)
        if name in others:
            raise table.wrong(field, "names that differ", f"{name!r} twice")
        return name

    def _tensor(self, tensor: CheckedTable) -> Array:
        """Return a tensor's values, in memory of their own."""
        code = tensor.integer("data_type", "int32")
        dtype = schema.dtype_of(code)
        if isinstance(dtype, str):
            raise tensor.wrong("data_type", "numbers", dtype)
        dims = tensor.array("dims", "<i8")
        shape = [] if dims is None else [int(extent) for extent in dims[: _MOST_EXTENTS + 1]]
        if len(shape) > _MOST_EXTENTS or min(shape, default=0) < 0:
            raise tensor.wrong("dims", f"up to {_MOST_EXTENTS} extents of 0 or more", str(shape))
        size = math.prod(shape) * dtype.itemsize
        self._room -= size
        if self._room < 0:
            most = Limits().max_bytes
            raise tensor.wrong(
                "dims",
                f"at most {most} bytes in all, max_bytes of steep.Limits",
                f"{counted(size, 'byte')} for {shape}",
                remedy="set the environment variable STEEP_MAX_BYTES",
            )
        values = self._bytes(tensor, size)
        if self._nominal:  # values that a nominal state holds none the less mean nothing
            values = np.zeros(size, np.uint8)
        if dtype == np.bool_ and values.size and int(values.max()) > 1:
            raise tensor.wrong("raw_data", "truth values of 0 or 1", str(int(values.max())))
        try:
            array: Array = values.view(dtype).reshape(shape)
        except ValueError as error:  # extents whose product is 0, and which are too large
            raise tensor.wrong("dims", "extents of an array", f"{shape}: {error}") from error
        return array

    def _bytes(self, tensor: CheckedTable, size: int) -> Array:
        offset = tensor.integer("external_data_offset", "int64", -1)
        if offset >= 0:
            if self._external is None:
                raise tensor.wrong("external_data_offset", "-1: no file of data", str(offset))
            return self._external.read(offset, size, tensor)
        raw = tensor.array("raw_data", np.uint8)
        count = 0 if raw is None else raw.size
        if count == 0 and self._nominal:
            return np.zeros(size, np.uint8)
        if count != size:
            raise tensor.wrong(
                "raw_data", f"{counted(size, 'byte')}, as dims and data_type say", f"{count}"
            )
        self._buffer.spend(size, tensor.field("raw_data"))
        return np.zeros(0, np.uint8) if raw is None else raw.copy()


class _External:
    """The file with the data of tensors, beside a checkpoint."""

    def __init__(self, path: Path, table: CheckedTable) -> None:
        self._path = path
        try:
            target = path.resolve(strict=True)
            if target.parent != path.parent.resolve(strict=True):
                raise table.wrong(
                    "has_external_data", f"{path.name} in the checkpoint's folder", f"{target}"
                )
            descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
            self._file = os.fdopen(descriptor, "rb")
            status = os.fstat(descriptor)
        except FileNotFoundError as error:
            raise table.wrong(
                "has_external_data",
                f"the file {path}",
                "no such file",
                remedy="copy it together with the checkpoint",
            ) from error
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
            raise _unreadable(path, error) from error
        self._size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise table.wrong("has_external_data", f"the file {path}", "not a regular file")

    def read(self, offset: int, size: int, tensor: CheckedTable) -> Array:
        """Return these bytes. Raises CheckpointError if they are not all there; IoError."""
        if offset + size > self._size:
            raise tensor.wrong(
                "external_data_offset",
                f"{counted(size, 'byte')} within {self._path}, which has {self._size}",
                f"a place that begins at byte {offset}",
            )
        values = np.empty(size, np.uint8)
        try:
            self._file.seek(offset)
            count = self._file.readinto(values.data)
        except OSError as error:
            raise _unreadable(self._path, error) from error
        if count != size:
            raise tensor.wrong(
                "external_data_offset", counted(size, "byte"), f"{count}: it was cut"
            )
        return values

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _unreadable(path: Path, error: Exception) -> IoError:
    text = error.strerror if isinstance(error, OSError) else None
    return IoError(
        "The data of a checkpoint cannot be read.",
        node=str(path),
        received=text or str(error),
        remedy="check the file's permissions",
    )


def _complete(state: TrainingState, extras: dict[str, Any]) -> None:
    """Set what the seal has. Raises KeyError, TypeError, ValueError and their like."""
    state.draws = int(extras["draws"])
    if not 0 <= state.draws < _MOST_STEPS:
        raise ValueError("a count is out of range")
    for name, text in extras["floats"].items():
        if not isinstance(state.properties[name], float):
            raise ValueError(f"a float for the property {name!r}")
        state.properties[name] = float.fromhex(text)
    if state.optimizer is not None:
        state.optimizer.lr = learning_rate(extras["lr"])
        state.optimizer.initial_lr = learning_rate(extras["initial_lr"])

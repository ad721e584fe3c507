"""Writes checkpoints of ONNX Runtime's format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from steep.compat.checkpoint import schema
from steep.compat.checkpoint.schema import Slots
from steep.compat.checkpoint.seal import seal
from steep.compat.checkpoint.tables import runtime
from steep.compat.state_file import OptimizerState, TrainingState
from steep.errors import DataError, counted

Array = np.ndarray[Any, Any]

_MOST_BYTES = 2**31 - 2**20  # of a FlatBuffer; some are left for what is not data
_FIELDS = 400  # bytes of a tensor beside its name and data, at most


def encode(state: TrainingState, with_optimizer: bool) -> bytes:
    """Return the bytes of a file.

    Raises:
        InstallationError: the package ``flatbuffers`` is not installed.
        DataError: the format cannot hold the state.
    """
    optimizer = state.optimizer if with_optimizer else None
    moments = _by_parameter(state, optimizer)
    values = {} if state.nominal else state.values
    arrays = [*values.values(), *(array for each in moments.values() for array in each.values())]
    size = sum(array.nbytes for array in arrays) + _FIELDS * (len(state.values) + len(arrays))
    size += sum(len(str(text)) for pair in state.properties.items() for text in pair) * 4
    if size > _MOST_BYTES:
        raise _unfit("the state", f"less than {_MOST_BYTES} bytes", counted(size, "byte"))
    maker = _Maker(size + 4096)
    module = maker.module(state)
    groups = [] if optimizer is None else [maker.group(optimizer, moments)]
    optimizer_groups = maker.vector(groups)
    bag = maker.properties(state)
    root = maker.table(
        schema.CHECKPOINT,
        {
            "version": ("Int32", schema.VERSION),
            "module_state": module,
            "optimizer_groups": optimizer_groups,
            "property_bag": bag,
            "sealed": ("Uint8", 1),
        },
    )
    extras: dict[str, Any] = {
        "draws": state.draws,
        "floats": {
            name: float(value).hex()
            for name, value in state.properties.items()
            if isinstance(value, float)
        },
    }
    if optimizer is not None:
        extras["lr"] = float(optimizer.lr).hex()
        extras["initial_lr"] = float(optimizer.initial_lr).hex()
    return seal(maker.finish(root), extras)


def _by_parameter(
    state: TrainingState, optimizer: OptimizerState | None
) -> dict[str, dict[str, Array]]:
    """Return the moments by parameter and their name. Raises DataError for other names."""
    moments: dict[str, dict[str, Array]] = {name: {} for name in state.trained}
    if optimizer is None:
        return moments
    if not optimizer.moments:  # ONNX Runtime's SGD has one moment, which stays 0
        return {name: {"momentum0": np.zeros_like(state.values[name])} for name in state.trained}
    for name, array in optimizer.moments.items():
        ends = [i for i, c in enumerate(name) if c == "/" and name[i + 1 :] in moments]
        if not ends or ends[0] == 0:
            raise _unfit(name, "moments with names such as momentum0/P of a parameter P", name)
        moments[name[ends[0] + 1 :]][name[: ends[0]]] = array
    return moments


def _unfit(node: str, expected: str, received: str) -> DataError:
    return DataError(
        "ONNX Runtime's format of checkpoints cannot hold a state.",
        node=node,
        expected=expected,
        received=received,
        remedy='save_checkpoint(…, file_format="safetensors"), which Steep reads',
    )


class _Maker:
    """Builds tables; the ends of a FlatBuffer are written first."""

    def __init__(self, size: int) -> None:
        self._builder = runtime().builder.Builder(size)

    def module(self, state: TrainingState) -> int:
        """Add the parameters; return the table."""
        trained = set(state.trained)
        groups = []
        for is_trained in (True, False):
            names = [name for name in state.values if (name in trained) == is_trained]
            tensors = [self.tensor(n, state.values[n], not state.nominal) for n in names]
            groups.append(self.vector(tensors))
        return self.table(
            schema.MODULE_STATE,
            {
                "requires_grad_params": groups[0],
                "frozen_params": groups[1],
                "is_nominal_state": ("Uint8", int(state.nominal)),
            },
        )

    def group(self, optimizer: OptimizerState, moments: dict[str, dict[str, Array]]) -> int:
        """Add the optimizer's state; return the table."""
        states = []
        for parameter, arrays in sorted(moments.items()):
            tensors = self.vector(self.tensor(n, arrays[n]) for n in sorted(arrays))
            fields = {"param_name": self.text(parameter), "momentums": tensors}
            states.append(self.table(schema.PARAMETER_STATE, fields))
        return self.table(
            schema.OPTIMIZER_GROUP,
            {
                "group_name": self.text(schema.GROUP),
                "step": ("Int64", optimizer.step),
                "initial_learning_rate": ("Float32", _single(optimizer.initial_lr)),
                "optimizer_states": self.vector(states),
            },
        )

    def properties(self, state: TrainingState) -> int:
        """Add the properties; return the table."""
        kinds: dict[str, tuple[type, Callable[[Any], Any]]] = {
            "ints": (int, lambda value: ("Int64", int(value))),
            "floats": (float, lambda value: ("Float32", _single(value))),
            "strings": (str, self.text),
        }
        bag = {}
        for kind, (python_type, field) in kinds.items():
            chosen = {n: v for n, v in state.properties.items() if isinstance(v, python_type)}
            tables = []
            for name, value in chosen.items():
                fields = {"name": self.text(name), "value": field(value)}
                tables.append(self.table(schema.PROPERTY, fields))
            bag[kind] = self.vector(tables)
        return self.table(schema.PROPERTY_BAG, bag)

    def tensor(self, name: str, array: Array, with_values: bool = True) -> int:
        """Add a tensor; return the table. Raises DataError for a dtype that the format lacks."""
        code = schema.code_of(array.dtype)
        if code is None:
            raise _unfit(name, "a dtype of ONNX", str(array.dtype))
        raw = np.zeros(0, np.uint8)
        if with_values:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        dims = np.array(array.shape, np.int64)
        fields = {
            "name": self.text(name),
            "dims": self._builder.CreateNumpyVector(dims),
            "data_type": ("Int32", code),
            "raw_data": self._builder.CreateNumpyVector(raw),
        }
        return self.table(schema.TENSOR, fields)

    def text(self, text: str) -> int:
        """Add a string; return its place."""
        place: int = self._builder.CreateString(text)
        return place

    def vector(self, places: Iterable[int]) -> int:
        """Add a vector of tables; return its place."""
        elements = list(places)
        self._builder.StartVector(4, len(elements), 4)
        for element in reversed(elements):
            self._builder.PrependUOffsetTRelative(element)
        place: int = self._builder.EndVector()
        return place

    def table(self, slots: Slots, fields: Mapping[str, int | tuple[str, Any]]) -> int:
        """Add a table of places, and of numbers with their kinds; return its place."""
        builder = self._builder
        builder.StartObject(len(slots))
        for name, value in fields.items():
            if isinstance(value, tuple):
                kind, number = value
                getattr(builder, f"Prepend{kind}Slot")(slots[name], number, 0)
            else:
                builder.PrependUOffsetTRelativeSlot(slots[name], value, 0)
        place: int = builder.EndObject()
        return place

    def finish(self, root: int) -> bytes:
        """Return the bytes with this root."""
        self._builder.Finish(root, schema.IDENTIFIER)
        return bytes(self._builder.Output())


def _single(value: float) -> float:
    """Return the number in float32; numbers that are too large become infinite."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))

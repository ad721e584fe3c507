"""``CheckpointState``: parameters, optimizer state and properties of on-device training."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from steep.compat import state_file
from steep.compat.checkpoint import files
from steep.compat.state_file import Property, TrainingState
from steep.errors import DataError, ShapeError

Array = np.ndarray[Any, Any]


class Parameter:
    """One parameter of a state: ``state.parameters[name]``.

    Attributes:
        name: its name in the model.
        requires_grad: whether it is trained.
    """

    def __init__(self, state: CheckpointState, name: str) -> None:
        self._state = state
        self.name = name
        self.requires_grad = name in state._content.trained

    @property
    def data(self) -> Array:
        """A copy of its present value; an assignment changes the value in all modules of the state.

        Raises:
            ShapeError: the assigned array has another dtype or shape.
            DataError: a nominal checkpoint has no values.
        """
        self._state._require_values()
        value: Array = self._state._content.values[self.name].copy()
        return value

    @data.setter
    def data(self, value: Array) -> None:
        # One value does not complete a nominal state: all parameters must be set at once.
        self._state._require_values()
        array_of_state = self._state._content.values[self.name]
        array = np.asarray(value)
        if array.dtype != array_of_state.dtype or array.shape != array_of_state.shape:
            raise ShapeError(
                "A parameter has another type.",
                node=self.name,
                expected=f"{array_of_state.dtype}{list(array_of_state.shape)}",
                received=f"{array.dtype}{list(array.shape)}",
            )
        np.copyto(array_of_state, array)

    @property
    def grad(self) -> Array | None:
        """A copy of its accumulated gradient: zeros before the first call of a module.

        None if there is no module yet, or the parameter is frozen.

        If several modules share the state, it is the gradient of the module that was made last.
        """
        return self._state._gradient(self.name)

    def __repr__(self) -> str:
        return f"Parameter(name={self.name}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters of a state by name. Iterating yields pairs of name and ``Parameter``."""

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        if name not in self:
            raise KeyError(f"there is no parameter {name!r}; there are {self._names()}")
        return Parameter(self._state, name)

    def __setitem__(self, name: str, value: Array) -> None:
        self[name].data = value

    def __contains__(self, name: object) -> bool:
        return name in self._state._content.values

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, self[name]) for name in self._state._content.values)

    def __len__(self) -> int:
        return len(self._state._content.values)

    def __repr__(self) -> str:
        return f"Parameters({self._names()})"

    def _names(self) -> str:
        return ", ".join(self._state._content.values)


class Properties:
    """Numbers and text that users store in a state, by name. Iterating yields pairs."""

    def __init__(self, values: dict[str, Property]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Property:
        if name not in self._values:
            raise KeyError(f"there is no property {name!r}; there are {', '.join(self._values)}")
        return self._values[name]

    def __setitem__(self, name: str, value: Property) -> None:
        self._values[name] = state_file.checked_property(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        return iter(list(self._values.items()))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({self._values})"


class CheckpointState:
    """The state of a training: parameters, optimizer state and properties.

    A ``Module`` trains the state's own memory. Modules of one state share it.

    >>> state = CheckpointState.load_checkpoint("checkpoint")
    >>> state.properties["epoch"] = 3
    >>> CheckpointState.save_checkpoint(state, "checkpoint", include_optimizer_state=True)

    Attributes:
        parameters: a ``Parameters``.
        properties: a ``Properties``.
    """

    def __init__(self, state: TrainingState) -> None:
        if not isinstance(state, TrainingState):
            raise TypeError(
                f"CheckpointState.load_checkpoint makes a state, not {type(state).__name__}"
            )
        self._content = state
        self._lock = threading.RLock()  # held by calls of modules and steps of optimizers
        self._gradient: Callable[[str], Array | None] = lambda name: None
        self.parameters = Parameters(self)
        self.properties = Properties(state.properties)

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Read a file of ``save_checkpoint`` or ``generate_artifacts``, Steep's or ONNX Runtime's.

        Raises:
            CheckpointError: it is damaged, or not such a file.
            InstallationError: it has ONNX Runtime's format, and ``flatbuffers`` is not installed.
            IoError: it cannot be read.
        """
        return cls(files.load(checkpoint_uri))

    @classmethod
    def from_buffer(cls, buffer: bytes) -> CheckpointState:
        """Read the bytes of such a file. Raises CheckpointError and InstallationError."""
        return cls(files.decode(bytes(buffer), "the buffer"))

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
        file_format: str | None = None,
    ) -> None:
        """Write a file; an existing one is replaced as a whole.

        ONNX Runtime 1.19.2 reads it too, on devices and elsewhere.

        Args:
            state: the state to save.
            checkpoint_uri: path of the file.
            include_optimizer_state: save moments, step and rate too; without them an optimizer that
                continues from the file starts anew.
            file_format: "onnxruntime", or "safetensors", which only Steep reads. None is the first
                if it can hold the state and the package ``flatbuffers`` is installed, and else the
                second, with a log message.

        Raises:
            IoError: it cannot be written; the old file stays.
            DataError: it is no state; or there is no such format, or it cannot hold the state.
            InstallationError: "onnxruntime" was requested, and ``flatbuffers`` is not installed.
        """
        if not isinstance(state, cls):
            raise DataError(
                "The first argument of save_checkpoint is not a state.",
                expected="a CheckpointState, then the path",
                received=type(state).__name__,
            )
        content = files.encode(state._content, include_optimizer_state, file_format)
        state_file.write(checkpoint_uri, content)

    def __getitem__(self, name: str) -> Parameter | Property:
        """Return the parameter of a name, or else the property. Raises KeyError."""
        return self.parameters[name] if name in self.parameters else self.properties[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the parameter of a name, if there is one, or else a property."""
        if name in self.parameters:
            self.parameters[name] = value
        else:
            self.properties[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self.parameters or name in self.properties

    def _require_values(self) -> None:
        if self._content.nominal:
            raise DataError(
                "The state is of a nominal checkpoint, which holds no values.",
                expected="values of all parameters",
                received="their names and shapes alone",
                remedy="call copy_buffer_to_parameters(buffer, trainable_only=False) of a Module",
            )

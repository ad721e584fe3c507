"""``TrainingAgent``: runs a training graph forward and backward, with lists of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from steep import _steep
from steep.compat.inference import training_graph
from steep.compat.inference.ort_device import OrtDevice, require_cpu
from steep.compat.inference.ort_value import OrtValue, receive
from steep.compat.inference.session import InferenceSession
from steep.errors import DataError, counted
from steep.session.gradient_session import GradientSession

Array = np.ndarray[Any, Any]


class PartialGraphExecutionState:
    """Holds a forward run until its backward; empty before and afterwards.

    Attributes:
        run: the run.
        input_shapes: by name, the shape in which each value was given.
        output_shapes: by name, the shape of each output.
    """

    def __init__(self) -> None:
        self.run: _steep.GradientRun | None = None
        self.input_shapes: dict[str, tuple[int, ...]] = {}
        self.output_shapes: dict[str, tuple[int, ...]] = {}


class OrtValueCache(dict[str, OrtValue]):
    """Values by name. Agents put nothing into it."""

    def insert(self, name: str, value: OrtValue) -> None:
        """Add a value."""
        self[name] = value

    def count(self, name: str) -> int:
        """Return 1 if there is a value of this name, else 0."""
        return int(name in self)

    def remove(self, name: str) -> None:
        """Drop a value. Raises KeyError."""
        del self[name]


class TrainingAgent:
    """Runs a training graph of ``OrtModuleGraphBuilder``: forward, then backward, with lists.

    Any number of runs may wait for their backward, each with its own state. A weight, or the
    gradient of an output, may have other extents of 1 than the graph's value; a weight's gradient
    then has the weight's shape. ``steep.GradientSession`` does the same by name.

    Args:
        session: an ``InferenceSession`` of the training graph.
        fw_feed_names: names of the values for ``run_forward``, in order: all inputs of the graph.
        fw_outputs_device_info: devices of the outputs: must be the CPU.
        bw_fetches_names: names of the gradients that ``run_backward`` returns, in order.
        bw_outputs_device_info: devices of the gradients: must be the CPU.
        local_rank: accepted for compatibility.

    Raises:
        DataError: the session has no training graph; a device is not the CPU; a name is not the
            graph's, or one of its inputs is missing.
    """

    def __init__(  # noqa: PLR0917 (ONNX Runtime's order)
        self,
        session: InferenceSession,
        fw_feed_names: Sequence[str],
        fw_outputs_device_info: Sequence[OrtDevice],
        bw_fetches_names: Sequence[str],
        bw_outputs_device_info: Sequence[OrtDevice],
        local_rank: int = 0,
    ) -> None:
        graph = getattr(session, "training_graph", None)
        if graph is None:
            raise DataError(
                "The session has no training graph.",
                expected="one of OrtModuleGraphBuilder.get_gradient_model()",
                received=type(session).__name__,
                remedy="OrtModuleGraphBuilder, or steep.GradientSession(model, wrt=…)",
            )
        for device in [*fw_outputs_device_info, *bw_outputs_device_info]:
            require_cpu(device)
        self._feeds, self._fetches = list(fw_feed_names), list(bw_fetches_names)
        inputs = [i.name for i in graph.graph.input]
        wrt = training_graph.wrt_of(graph)
        if sorted(self._feeds) != sorted(inputs):
            raise DataError(
                "Forward needs every input of the training graph, once.",
                expected=", ".join(inputs),
                received=", ".join(self._feeds),
            )
        unknown = [name for name in self._fetches if name not in wrt]
        if unknown or not self._fetches:
            raise DataError(
                "The training graph does not compute one of the gradients.",
                node=", ".join(unknown),
                expected=", ".join(wrt),
                received=", ".join(self._fetches),
            )
        self._wrt = [wrt[name] for name in self._fetches]
        self._gradients = training_graph.differentiable_of(graph)
        self._shapes = {info.name: _fixed_shape(info) for info in graph.graph.input}
        self._session = GradientSession(
            training_graph.forward_of(graph),
            list(dict.fromkeys(self._wrt)),
            providers=session.providers,
        )

    def run_forward(
        self,
        feeds: Sequence[OrtValue],
        fetches: list[OrtValue],
        state: PartialGraphExecutionState,
        cache: OrtValueCache | None = None,
    ) -> None:
        """Run forward.

        Args:
            feeds: a value for each of ``fw_feed_names``, in their order.
            fetches: list for the model's outputs: empty; or with a value for each of them, of its
                dtype and shape, to whose memory it is written.
            state: holds the run afterwards.
            cache: accepted for compatibility.

        Raises:
            DataError, ShapeError, ProviderError: as ``steep.GradientSession.forward``.
            DataError, ShapeError: the values in ``fetches`` do not fit the outputs.
        """
        values = zip(self._feeds, _require_count("forward", feeds, self._feeds), strict=True)
        arrays = {name: np.asarray(value) for name, value in values}
        inputs = {name: _in_shape(array, self._shapes[name]) for name, array in arrays.items()}
        outputs, state.run = self._session.forward(inputs)
        state.input_shapes = {name: array.shape for name, array in arrays.items()}
        names = [info.name for info in self._session.output_info()]
        state.output_shapes = {n: tuple(y.shape) for n, y in zip(names, outputs, strict=True)}
        receive(fetches, [np.asarray(y) for y in outputs])

    def run_backward(
        self,
        feeds: Sequence[OrtValue],
        fetches: list[OrtValue],
        state: PartialGraphExecutionState,
    ) -> None:
        """Run backward.

        Args:
            feeds: the gradient of each output that has one, in their order.
            fetches: list for the gradients, in the order of ``bw_fetches_names``; as in forward.
            state: that of the forward run; empty afterwards.

        Raises:
            DataError: the state is empty.
            DataError, ShapeError: the values in ``fetches`` do not fit the gradients.
            DataError, ShapeError, ModelError: as ``steep.GradientSession.backward``.
        """
        if state.run is None:
            raise DataError(
                "There is no forward run that waits for its backward.",
                node="PartialGraphExecutionState",
                expected="a state that run_forward() was given, once",
                received="an empty one",
            )
        values = _require_count("backward", feeds, self._gradients)
        output_gradients = {
            name: _in_shape(np.asarray(value), state.output_shapes[name])
            for name, value in zip(self._gradients, values, strict=True)
        }
        gradients = self._session.backward(state.run, output_gradients)
        state.run = None
        receive(
            fetches, [np.asarray(gradients[n]).reshape(state.input_shapes[n]) for n in self._wrt]
        )


def _require_count(
    call: str, values: Sequence[OrtValue], names: Sequence[str]
) -> Sequence[OrtValue]:
    if len(values) != len(names):
        raise DataError(
            f"run_{call} takes one value for each of its names.",
            expected=", ".join(names),
            received=counted(len(values), "value"),
        )
    return values


def _fixed_shape(info: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    dims = info.type.tensor_type.shape.dim
    if not info.type.tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None


def _in_shape(array: Array, shape: tuple[int, ...] | None) -> Array:
    """Return the array with a shape that differs by extents of 1 only; itself for any other."""
    if shape is None or [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        return array
    return array.reshape(shape)

"""``InferenceSession`` with bindings: inputs and outputs that are bound before the run."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper

from steep.compat.inference import training_graph
from steep.compat.inference.ort_device import OrtDevice, require_cpu
from steep.compat.inference.ort_value import OrtValue, OrtValueVector, PythonOrtValue
from steep.compat.notices import say_once
from steep.errors import DataError
from steep.session import inference
from steep.session.inference import NodeArg, SessionOptions

Array = np.ndarray[Any, Any]
Providers = Sequence[str | tuple[str, Mapping[str, Any]]]

_DIFFER_IN_TRAINING = ("Dropout", "BatchNormalization")


class RunOptions:
    """Options of one run. Any other name raises AttributeError.

    Attributes:
        terminate: if set, a run raises an error, as if it had been terminated.
        training_mode: without effect on a model that computes the same in training. A model with
            dropout or batch normalisation refuses it; ``GradientSession`` and ``TrainingAgent`` run
            one as in training.
        only_execute_path_to_fetches: accepted; values that no requested output needs are never
            computed.
        log_severity_level, log_verbosity_level, logid, synchronize_execution_providers: accepted;
            without effect.
    """

    __slots__ = (
        "_entries",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "only_execute_path_to_fetches",
        "synchronize_execution_providers",
        "terminate",
        "training_mode",
    )

    def __init__(self) -> None:
        self.terminate = False
        self.training_mode = False
        self.only_execute_path_to_fetches = False
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.synchronize_execution_providers = True
        self._entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store a setting. A log message says once that it has no effect."""
        self._entries[key] = value
        say_once(f"the run's setting {key!r}", "settings of a run by name are not supported")

    def get_run_config_entry(self, key: str) -> str:
        """Return a stored setting. Raises KeyError."""
        return self._entries[key]


def check_run(options: object) -> None:
    """Raise DataError if the options terminate the run."""
    if getattr(options, "terminate", False):
        raise DataError("The run options ask the run to terminate.", node="RunOptions.terminate")


def with_options(
    providers: Providers | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> Providers | None:
    """Join names of providers with their options, which ONNX Runtime takes as two lists."""
    if not provider_options:
        return providers
    if providers is None or len(providers) != len(provider_options):
        raise DataError(
            "The number of options differs from the number of providers.",
            expected=f"{len(provider_options)} providers",
            received=f"{len(providers or ())}",
        )
    names = [p if isinstance(p, str) else p[0] for p in providers]
    return list(zip(names, provider_options, strict=True))


class InferenceSession(inference.InferenceSession):
    """``steep.InferenceSession`` with bindings; its arguments, and ``provider_options``.

    It also accepts a training graph of ``OrtModuleGraphBuilder``, which ``TrainingAgent`` runs.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Providers | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **ignored: object,
    ) -> None:
        for name in ignored:
            say_once(f"InferenceSession({name}=)", "sessions have no such argument")
        choice = with_options(providers, provider_options)
        self.training_graph = training_graph.read(path_or_bytes)
        model = path_or_bytes
        if self.training_graph is not None:
            model = training_graph.forward_of(self.training_graph).SerializeToString()
        super().__init__(model, sess_options, choice)
        self.providers = choice
        self._differs_in_training = training_graph.mentions(path_or_bytes, _DIFFER_IN_TRAINING)

    @property
    def _sess(self) -> InferenceSession:  # ONNX Runtime's class wraps a session of this name
        return self

    def get_inputs(self) -> list[NodeArg]:
        """List the inputs; for a training graph, its inputs and weights."""
        if self.training_graph is None:
            return super().get_inputs()
        return [_node_arg(info) for info in self.training_graph.graph.input]

    def get_outputs(self) -> list[NodeArg]:
        """List the outputs; for a training graph, the gradients."""
        if self.training_graph is None:
            return super().get_outputs()
        return [_node_arg(info) for info in self.training_graph.graph.output]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: object = None,
        *,
        out: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Run the model, as ``steep.InferenceSession.run`` does.

        Raises:
            DataError: as there; the model is a training graph; or the options terminate the run, or
                request training mode of a model with operators that differ in it.
        """
        check_run(run_options)
        if self.training_graph is not None:
            raise DataError(
                "A training graph needs gradients of its outputs between forward and backward.",
                remedy="TrainingAgent(session, …).run_forward and run_backward",
            )
        if self._differs_in_training and getattr(run_options, "training_mode", False):
            raise DataError(
                "An InferenceSession cannot run a model with dropout or batch normalisation in "
                "training mode.",
                node="RunOptions.training_mode",
                expected="False",
                received="True",
                remedy="steep.GradientSession(model, wrt=…).forward, or a TrainingAgent",
            )
        return super().run(output_names, input_feed, run_options, out=out)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: object = None,
    ) -> list[OrtValue]:
        """Run the model; results are OrtValues. Raises as ``run``."""
        results = self.run(output_names, input_dict_ort_values, run_options)
        return [PythonOrtValue(np.asarray(result)) for result in results]

    def io_binding(self) -> IOBinding:
        """Return an empty binding."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: SessionIOBinding, run_options: object = None) -> None:
        """Run the model on bound inputs; the binding then has the outputs. Raises as ``run``."""
        iobinding.fill(self.run(iobinding.output_names(), iobinding.inputs, run_options))


class _WithOutputs(Protocol):
    """A session for inference or training."""

    def get_outputs(self) -> Sequence[NodeArg]:
        """List the outputs."""


class SessionIOBinding:
    """Inputs, and memory for outputs, of a session's next runs.

    >>> binding = session.io_binding()
    >>> binding.bind_cpu_input("x", np.ones((8, 4), np.float32))
    >>> binding.bind_output("y")
    >>> session.run_with_iobinding(binding)
    >>> (y,) = binding.copy_outputs_to_cpu()
    """

    def __init__(self, session: _WithOutputs) -> None:
        self._names = [output.name for output in session.get_outputs()]
        self.inputs: dict[str, Any] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._results = OrtValueVector()

    @property
    def _iobinding(self) -> SessionIOBinding:  # ONNX Runtime's class wraps a binding of this name
        return self

    def bind_input(self, name: str, *place: Any) -> None:
        """Bind an array; or memory, as device, (device number,) dtype, shape and address.

        Raises:
            DataError: the device is not the CPU; it is no array.
        """
        self.inputs[name] = _at(*place) if len(place) > 1 else place[0]

    def bind_cpu_input(self, name: str, arr_on_cpu: object) -> None:
        """Bind an array."""
        self.inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value."""
        self.inputs[name] = ortvalue

    def bind_output(self, name: str, *place: Any) -> None:
        """Request an output: in new memory, or in memory given by device, dtype, shape and address.

        Raises:
            DataError: the device is not the CPU; the model has no such output.
        """
        self._ask(name, None)
        if place:
            require_cpu(place[0], *(place[1:2] if isinstance(place[0], str) else ()))
        rest = place[2:] if place and isinstance(place[0], str) else place[1:]
        if any(part is not None for part in rest):
            self._outputs[name] = OrtValue(_at(*place))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Request an output, which is written to a value of its dtype and shape."""
        self._ask(name, ortvalue)

    def output_names(self) -> list[str]:
        """Return the names of the requested outputs.

        Raises:
            DataError: there is none.
        """
        if not self._outputs:
            raise DataError(
                "No output is bound.",
                expected=", ".join(self._names),
                remedy="bind_output(name)",
            )
        return list(self._outputs)

    def fill(self, results: Sequence[Any]) -> None:
        """Store a run's results, in the order of ``output_names()``.

        Raises:
            ShapeError: the value for an output has another dtype or shape.
        """
        values = OrtValueVector()
        for target, result in zip(self._outputs.values(), results, strict=True):
            array = np.asarray(result)
            if target is not None:
                target.update_inplace(array)
            values.append(OrtValue(array) if target is None else target)
        self._results = values

    def get_outputs(self) -> OrtValueVector:
        """Return the last run's outputs, in the order in which they were bound."""
        return self._results

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return copies of the last run's outputs."""
        return [value.numpy() for value in self._results]

    def clear_binding_inputs(self) -> None:
        """Remove all inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Remove all outputs."""
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: there are no asynchronous copies."""

    def synchronize_outputs(self) -> None:
        """Do nothing."""

    def _ask(self, name: str, value: OrtValue | None) -> None:
        if name not in self._names:
            raise DataError(
                "The model has no such output.",
                node=name,
                expected=", ".join(self._names),
                received=name,
            )
        self._outputs[name] = value


class IOBinding(SessionIOBinding):
    """``SessionIOBinding``, whose outputs are values of ``onnxruntime.OrtValue``."""

    def get_outputs(self) -> OrtValueVector:
        """Return the last run's outputs, in the order in which they were bound."""
        return OrtValueVector(PythonOrtValue.of(value) for value in super().get_outputs())


def _at(*place: Any) -> Array:
    """Return the array at device, (device number,) dtype, shape, address; it shares the memory."""
    names = isinstance(place[0], str)
    require_cpu(place[0], *(place[1:2] if names else ()))
    length = 5 if names else 4
    if len(place) != length or any(part is None for part in place):
        raise DataError(
            "Bound memory needs all of device, dtype, shape and address.",
            received=str(place),
        )
    element_type, shape, address = place[-3:]
    number = isinstance(element_type, int)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element_type) if number else element_type)
    extents = [int(extent) for extent in shape]
    count = int(np.prod(extents)) * dtype.itemsize
    if count == 0:
        return np.zeros(extents, dtype)
    memory = (ctypes.c_byte * count).from_address(int(address))
    array: Array = np.frombuffer(memory, dtype).reshape(extents)
    return array


def _node_arg(info: onnx.ValueInfoProto) -> NodeArg:
    tensor = info.type.tensor_type
    shape = [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
    ]
    kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    kind = {"float32": "float", "float64": "double"}.get(kind, kind)
    return NodeArg(info.name, f"tensor({kind})", shape if tensor.HasField("shape") else None)


__all__ = [
    "IOBinding",
    "InferenceSession",
    "OrtDevice",
    "OrtValue",
    "OrtValueVector",
    "PythonOrtValue",
    "RunOptions",
    "SessionIOBinding",
]

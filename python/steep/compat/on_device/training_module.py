"""``Module``: calls of a model that accumulate gradients, or evaluate."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from steep import _steep
from steep.compat import state_file
from steep.compat.inference.ort_value import OrtValue, PythonOrtValue
from steep.compat.on_device.training_state import Array, CheckpointState
from steep.compat.onnxblock.artifacts import parse, serialise
from steep.compat.onnxblock.base import info_of, prune, require_values
from steep.compat.onnxblock.models import check, read_mark, statistics
from steep.errors import CheckpointError, DataError, ModelError, ShapeError, counted
from steep.session.custom_ops import register_optimizer
from steep.session.inference import InferenceSession, SessionOptions
from steep.session.training import TrainingSession

Path = str | os.PathLike[str]

# An "optimizer" whose state is the sum of gradients; lr 0 begins a new sum, lr 1 adds to it.
_GATHER = "compat_gather"
_FUNCTION = f"""<domain: "steep.optimizer", opset_import: ["": 18]>
{_GATHER} (w, g, total, lr, step) => (new_w, new_total) {{
    new_w = Identity (w)
    more = Cast <to = 9> (lr)
    both = Add (total, g)
    new_total = Where (more, both, g)
}}"""
_registering = threading.Lock()


class Module:
    """A model that is trained or evaluated by calling it.

    In training mode a call returns the training model's outputs and adds the gradients of the
    first output, the loss, to those of earlier calls; after ``lazy_reset_grad`` the next call
    begins a new sum. In evaluation mode it returns the evaluation model's outputs. Both read the
    state's own memory, which an ``Optimizer`` updates. Calls from several threads run one after the
    other.

    >>> state = CheckpointState.load_checkpoint("artifacts/checkpoint")
    >>> module = Module("artifacts/training_model.onnx", state, "artifacts/eval_model.onnx")
    >>> optimizer = Optimizer("artifacts/optimizer_model.onnx", module)
    >>> module.train()
    >>> loss = module(x, labels)
    >>> optimizer.step()
    >>> module.lazy_reset_grad()

    Args:
        train_model_uri: path of a training model.
        state: its parameters.
        eval_model_uri: path of an evaluation model; without it there is no evaluation.
        device: "cpu".
        session_options: a ``SessionOptions``; only its seed, limits and ``check_finite`` have
            effect.

    Raises:
        ModelError: a file is no such model.
        CheckpointError: the state belongs to another model.
        DataError: the device is not the CPU; or ``state`` is no ``CheckpointState``.
        IoError: a file cannot be read.

    Attributes:
        training: whether calls train.
    """

    def __init__(
        self,
        train_model_uri: Path,
        state: CheckpointState,
        eval_model_uri: Path | None = None,
        device: str = "cpu",
        session_options: SessionOptions | None = None,
    ) -> None:
        if not isinstance(state, CheckpointState):
            raise DataError(
                "A Module needs a CheckpointState.",
                expected="a CheckpointState",
                received=type(state).__name__,
                remedy="CheckpointState.load_checkpoint(path)",
            )
        if device not in ("cpu", "cpu:0"):
            raise DataError(
                "A Module runs on the CPU only.", expected='"cpu"', received=repr(device)
            )
        self.training = True
        self._state = state
        self._options = session_options or SessionOptions()
        train = _read(train_model_uri, "training", state)
        self._names = [i.name for i in train.graph.input if i.name in state.parameters]
        self._trained_names = [name for name in self._names if name in state._content.trained]
        if not self._trained_names:
            raise CheckpointError(
                "The model trains no parameter of the state.",
                node=os.fspath(train_model_uri),
                expected=", ".join(i.name for i in train.graph.input),
                received="trained: " + ", ".join(state._content.trained),
            )
        self._train_outputs = [output.name for output in train.graph.output]
        self._session, self._parameter_inputs = self._compile(train)
        self._eval: onnx.ModelProto | None = None
        self._evaluation: InferenceSession | None = None
        if eval_model_uri is not None:
            self._eval = _read(eval_model_uri, "evaluation", state)
            eval_inputs = [i.name for i in self._eval.graph.input]
            self._eval_parameters = [n for n in eval_inputs if n in state.parameters]
            self._evaluation = InferenceSession(serialise(self._eval), self._options)
        self._train_inputs = [
            i.name for i in self._session.input_info() if i.name not in self._parameter_inputs
        ]
        self._begins = True  # whether the next call begins a new sum
        self._called = False
        state._gradient = self._gradient

    def __call__(self, *user_inputs: object) -> Any:
        """Run a step of training or evaluation.

        Args:
            user_inputs: NumPy arrays, arrays with DLPack, or ``OrtValue``, in the order of
                ``input_names``. Floats of another width, and integers that fit, are converted.

        Returns:
            The outputs: one, or a tuple; NumPy arrays, or ``OrtValue`` if all inputs are.

        Raises:
            ShapeError: an input has another dtype or shape, or there are too many or too few.
            DataError: there is no evaluation model; the loss is not finite; a nominal state has no
                values yet.
        """
        self._state._require_values()
        step = self._train_step if self.training else self._eval_step
        with self._state._lock:
            outputs: list[Any] = step(user_inputs)
        if user_inputs and all(isinstance(value, OrtValue) for value in user_inputs):
            outputs = [PythonOrtValue(output) for output in outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def train(self, mode: bool = True) -> Module:
        """Set the mode of calls: training, or with False evaluation; return the module."""
        self.training = bool(mode)
        return self

    def eval(self) -> Module:
        """Set evaluation mode; return the module."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Make the next training call begin a new sum of gradients."""
        self._begins = True

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Return the number of elements of the trained parameters, or of all."""
        return sum(self._value(name).size for name in self._choose_names(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> OrtValue:
        """Return all parameters concatenated, as a float32 ``OrtValue`` of rank 1.

        They are in the order of the training model's inputs.

        Raises:
            DataError: one has another dtype, or a nominal state has no values.
        """
        self._state._require_values()
        values = [self._float(name).reshape(-1) for name in self._choose_names(trainable_only)]
        return PythonOrtValue(np.concatenate(values) if values else np.zeros(0, np.float32))

    def copy_buffer_to_parameters(
        self, buffer: OrtValue | Array, trainable_only: bool = True
    ) -> None:
        """Set parameters from a result of ``get_contiguous_parameters``, or an array like it.

        Raises:
            ShapeError: it is not float32, of rank 1 and of ``get_parameters_size`` elements.
            DataError: a parameter has another dtype; or the state is nominal and not all are set.
        """
        array = np.asarray(buffer)
        size = self.get_parameters_size(trainable_only)
        if array.dtype != np.float32 or array.shape != (size,):
            raise ShapeError(
                "A buffer does not fit the parameters.",
                expected=f"float32[{size}]",
                received=f"{array.dtype}{list(array.shape)}",
                remedy="trainable_only must be what it was when the buffer was made",
            )
        names = self._choose_names(trainable_only)
        if len(names) < len(self._state.parameters):
            self._state._require_values()
        values = [self._float(name) for name in names]
        for value in values:
            np.copyto(value, array[: value.size].reshape(value.shape))
            array = array[value.size :]
        self._state._content.nominal = False

    def export_model_for_inferencing(
        self, inference_model_uri: Path, graph_output_names: Sequence[str]
    ) -> None:
        """Write the part of the evaluation model that computes some values, with its parameters.

        Args:
            inference_model_uri: path of the file.
            graph_output_names: values of the evaluation model that become the outputs.

        Raises:
            DataError: there is no evaluation model.
            ModelError: a name is not one of its values.
            IoError: the file cannot be written.
        """
        self._state._require_values()
        model = onnx.ModelProto()
        model.CopyFrom(self._require_evaluation())
        if isinstance(graph_output_names, str) or not graph_output_names:
            raise DataError(
                "The names of the outputs to export are not valid.",
                expected="a list of names",
                received=repr(graph_output_names),
            )
        require_values(model, graph_output_names, "output")
        outputs = [info_of(model, n) or onnx.ValueInfoProto(name=n) for n in graph_output_names]
        del model.graph.output[:]
        model.graph.output.extend(outputs)
        names = prune(model.graph)
        graph = model.graph
        for name in self._state._content.values:
            if name in names:
                value = self._value(name)
                graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        stay = [i for i in graph.input if i.name in names and i.name not in self._state.parameters]
        del graph.input[:]
        graph.input.extend(stay)
        del model.metadata_props[:]
        check(model)
        state_file.write(inference_model_uri, serialise(model))

    def input_names(self) -> list[str]:
        """Return the inputs' names in the present mode. Raises DataError without a model for it."""
        if self.training:
            return list(self._train_inputs)
        return [i.name for i in self._inputs_of_evaluation()]

    def output_names(self) -> list[str]:
        """Return the outputs' names in the present mode. Raises DataError without its model."""
        if self.training:
            return list(self._train_outputs)
        return [output.name for output in self._require_evaluation().graph.output]

    # --- inside -----------------------------------------------------------------------------------

    def _compile(self, model: onnx.ModelProto) -> tuple[TrainingSession, dict[str, Array]]:
        """Return a session, and the parameters that are inputs of its steps.

        Trained parameters and running statistics are states of the session, in the memory of the
        ``CheckpointState``. Other parameters are inputs: as constants they would be folded.
        """
        graph = model.graph
        inside = [*self._trained_names, *statistics(graph, self._names)]
        for value in [i for i in graph.input if i.name in inside]:
            graph.input.remove(value)
            array = self._value(value.name)
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.initializer.append(TensorProto(name=value.name, data_type=kind, dims=array.shape))
        with _registering, register_optimizer(_FUNCTION):
            session = TrainingSession(
                model,
                output=self._train_outputs[0],
                optimizer=_GATHER,
                lr=0.0,
                trainable=self._trained_names,
                step_outputs=self._train_outputs,
                seed=self._options.seed,
                check_finite=self._options.check_finite,
                limits=self._options.limits,
                weights={name: self._value(name) for name in inside},
                bound_to_graph=False,
            )
        inputs = {name: self._value(name) for name in self._names if name not in inside}
        return session, inputs

    def _train_step(self, arrays: Sequence[Any]) -> list[Array]:
        _count(self._train_inputs, arrays)
        self._session.lr = 0.0 if self._begins else 1.0
        feed = dict(zip(self._train_inputs, arrays, strict=True))
        state = self._state._content
        self._session.run_count = state.draws
        result = self._session.step(**feed, **self._parameter_inputs)
        state.draws = self._session.run_count
        self._begins, self._called = False, True
        return [output.numpy() for output in result.outputs]

    def _eval_step(self, arrays: Sequence[Any]) -> list[Array]:
        inputs = self._inputs_of_evaluation()
        _count([i.name for i in inputs], arrays)
        feed = {i.name: _like(i, array) for i, array in zip(inputs, arrays, strict=True)}
        values = {name: self._value(name) for name in self._eval_parameters}
        assert self._evaluation is not None
        return self._evaluation.run(None, {**feed, **values})

    def _require_evaluation(self) -> onnx.ModelProto:
        if self._eval is None:
            raise DataError(
                "The module has no evaluation model.",
                expected="eval_model_uri",
                received="None",
                remedy="Module(train_model_uri, state, eval_model_uri)",
            )
        return self._eval

    def _inputs_of_evaluation(self) -> list[onnx.ValueInfoProto]:
        inputs = self._require_evaluation().graph.input
        return [i for i in inputs if i.name not in self._state.parameters]

    def _gradient(self, name: str) -> Array | None:
        if name not in self._trained_names:
            return None
        if not self._called:
            return np.zeros_like(self._value(name))
        total: Array = np.array(self._session.state(f"total/{name}"))
        return total

    def _require_gradients(self) -> dict[str, Array]:
        """Return the sums of gradients. Raises DataError if no call has begun them."""
        if self._begins:
            raise DataError(
                "There are no gradients to apply.",
                expected="a call of the module in training mode before optimizer.step()",
                received="lazy_reset_grad() since the last one" if self._called else "none so far",
                remedy="module.train(); module(…); optimizer.step(); module.lazy_reset_grad()",
            )
        return {n: np.asarray(self._session.state(f"total/{n}")) for n in self._trained_names}

    def _choose_names(self, trainable_only: bool) -> list[str]:
        return self._trained_names if trainable_only else self._names

    def _value(self, name: str) -> Array:
        return self._state._content.values[name]

    def _float(self, name: str) -> Array:
        value = self._value(name)
        if value.dtype != np.float32:
            raise DataError(
                "A parameter is not float32, so the buffer cannot hold it.",
                node=name,
                expected="float32",
                received=str(value.dtype),
                remedy="state.parameters[name].data",
            )
        return value


def _read(uri: Path, kind: str, state: CheckpointState) -> onnx.ModelProto:
    """Return the model of a file; check its kind, and that the state belongs to it."""
    model = parse(uri)
    where = os.fspath(uri)
    record = read_mark(model)
    old = {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}
    if old & {"InPlaceAccumulatorV2", "InPlaceAccumulator", "AdamWOptimizer", "SGDOptimizerV2"}:
        raise ModelError(
            "The file is an artifact of ONNX Runtime, whose gradients are part of it.",
            node=where,
            received="operators " + ", ".join(sorted(old)),
            remedy="call generate_artifacts once more, on the forward model, under steep.compat",
        )
    if record.get("kind", kind) != kind:
        raise ModelError(
            "The file is a different training artifact.",
            node=where,
            expected=f"the model of {kind}",
            received=f"the model of {record['kind']}",
            remedy=(
                "check the order of the arguments: Module(train_model_uri, state, eval_model_uri)"
            ),
        )
    missing = [name for name in record.get("parameters", ()) if name not in state.parameters]
    if missing:
        raise CheckpointError(
            "The state belongs to another model: parameters are missing.",
            node=where,
            expected=", ".join(record["parameters"]),
            received="no " + ", ".join(missing),
            remedy="load the checkpoint that was written with this model",
        )
    for value in model.graph.input:
        if value.name in state.parameters:
            if state._content.nominal:
                _shape_like(value, state)
            _require_like(value, state._content.values[value.name], where)
    return model


def _shape_like(value: onnx.ValueInfoProto, state: CheckpointState) -> None:
    """Give a parameter the model's shape, if the nominal checkpoint says none.

    Those of ONNX Runtime have names and dtypes alone.
    """
    dims = value.type.tensor_type.shape.dim
    array = state._content.values[value.name]
    if array.ndim or not dims or not all(d.HasField("dim_value") for d in dims):
        return
    try:
        blank = state_file.blank([d.dim_value for d in dims], array.dtype)
    except ValueError as error:
        raise ModelError(
            "A parameter is too large.", node=value.name, received=str(error)
        ) from error
    state._content.values[value.name] = blank


def _require_like(value: onnx.ValueInfoProto, array: Array, where: str) -> None:
    tensor = value.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    fits = len(shape) == array.ndim and all(
        e in (-1, h) for e, h in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        raise CheckpointError(
            "The state belongs to another model: a parameter has another type.",
            node=value.name,
            expected=f"{dtype}{shape} in {where}",
            received=f"{array.dtype}{list(array.shape)}",
            remedy="load the checkpoint that was written with this model",
        )


def _count(names: Sequence[str], values: Sequence[Any]) -> None:
    if len(names) != len(values):
        raise ShapeError(
            "The number of inputs is wrong.",
            expected=f"{counted(len(names), 'input')}: {', '.join(names)}",
            received=counted(len(values), "input"),
        )


def _like(info: onnx.ValueInfoProto, value: object) -> Array:
    """Return an input in the dtype of the model, converted as in a training call.

    Raises DataError as a training call, such as for a finite number that becomes infinite.
    """
    array = np.asarray(value)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
    numbers = array.dtype.kind in "fiu" and dtype.kind in "fiu"
    if array.dtype == dtype or not numbers or (array.dtype.kind == "f" and dtype.kind != "f"):
        return array  # the engine raises the error
    result: Array = _steep.convert(array, dtype.name, info.name).numpy()
    return result


def describe_types(values: Mapping[str, Array]) -> str:
    """Return names and types of arrays as text, for messages."""
    return ", ".join(f"{n}: {a.dtype}{list(a.shape)}" for n, a in values.items())

"""``OrtModuleGraphBuilder`` and ``GradientGraphBuilder``: make training graphs of models."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Sequence

import onnx

from steep._steep import write_file
from steep.compat.agent.settings import (
    GradientGraphConfiguration,
    OrtModuleGraphBuilderConfiguration,
    TrainingGraphTransformerConfiguration,
)
from steep.compat.inference import training_graph
from steep.errors import DataError, ModelError
from steep.session.gradient import grad
from steep.session.gradient_session import GradientSession


@dataclasses.dataclass
class GraphInfo:
    """The names of a training graph's inputs and outputs.

    Attributes:
        user_input_names: inputs of the model.
        user_input_grad_names: by input, the name of its gradient, if it has one.
        initializer_names: initializers that are inputs of the training graph, after the former.
        initializer_names_to_train: those of the initializers that have gradients.
        initializer_grad_names_to_train: these gradients, in the same order.
        user_output_names: outputs of the model.
        output_grad_indices_non_differentiable: positions of outputs that have no gradient.
        output_grad_indices_require_full_shape: positions of outputs whose gradient must have their
            shape: all.
        module_output_indices_requires_save_for_backward: empty: backward keeps what it reads
            itself.
        module_output_gradient_name: gradients of outputs, the inputs of ``run_backward`` in order.
        frontier_node_arg_map, cached_node_arg_names: empty: nothing is cached.
    """

    user_input_names: list[str] = dataclasses.field(default_factory=list)
    user_input_grad_names: dict[str, str] = dataclasses.field(default_factory=dict)
    initializer_names: list[str] = dataclasses.field(default_factory=list)
    initializer_names_to_train: list[str] = dataclasses.field(default_factory=list)
    initializer_grad_names_to_train: list[str] = dataclasses.field(default_factory=list)
    user_output_names: list[str] = dataclasses.field(default_factory=list)
    output_grad_indices_non_differentiable: list[int] = dataclasses.field(default_factory=list)
    output_grad_indices_require_full_shape: list[int] = dataclasses.field(default_factory=list)
    module_output_indices_requires_save_for_backward: list[int] = dataclasses.field(
        default_factory=list
    )
    module_output_gradient_name: list[str] = dataclasses.field(default_factory=list)
    frontier_node_arg_map: dict[str, str] = dataclasses.field(default_factory=dict)
    cached_node_arg_names: list[str] = dataclasses.field(default_factory=list)


class OrtModuleGraphBuilder:
    """Makes the two graphs of a model that a ``TrainingAgent`` runs.

    >>> builder = OrtModuleGraphBuilder()
    >>> builder.initialize(model.SerializeToString(), config)
    >>> builder.build(TrainingGraphTransformerConfiguration())
    >>> session = InferenceSession(builder.get_gradient_model())
    """

    def __init__(self) -> None:
        self._forward = onnx.ModelProto()
        self._training: onnx.ModelProto | None = None
        self._config: OrtModuleGraphBuilderConfiguration | None = None
        self._info = GraphInfo()

    def initialize(
        self, serialized_model: bytes, config: OrtModuleGraphBuilderConfiguration
    ) -> None:
        """Set the model, and which values have gradients.

        Raises:
            ModelError: it is no model, or lacks an initializer or input that ``config`` names.
        """
        try:
            model = onnx.load_model_from_string(serialized_model)
        except Exception as error:  # protobuf's class of error depends on its version
            raise ModelError("These bytes are not an ONNX model.", received=str(error)) from error
        graph = model.graph
        initializers = {i.name: i for i in graph.initializer}
        names = list(config.initializer_names)
        available = [*initializers]
        _require_known("initializer_names", names, available)
        _require_known("initializer_names_to_train", config.initializer_names_to_train, names)
        inputs = [i.name for i in graph.input if i.name not in initializers]
        _require_known("input_names_require_grad", config.input_names_require_grad, inputs)
        model_inputs = [i for i in graph.input if i.name not in names]
        constants = [i for i in graph.initializer if i.name not in names]
        del graph.input[:], graph.initializer[:]
        graph.input.extend(model_inputs)
        graph.initializer.extend(constants)
        for name in names:
            weight = initializers[name]
            graph.input.append(
                onnx.helper.make_tensor_value_info(name, weight.data_type, weight.dims)
            )
        self._forward, self._config, self._training = model, config, None
        self._info = GraphInfo(
            user_input_names=inputs,
            initializer_names=names,
            initializer_names_to_train=list(config.initializer_names_to_train),
            user_output_names=[o.name for o in graph.output],
        )

    def build(
        self,
        config: TrainingGraphTransformerConfiguration | None = None,
        input_shapes: Sequence[Sequence[int]] = (),
    ) -> None:
        """Make the training graph, unless ``build_gradient_graph`` is off.

        Args:
            config: accepted for compatibility.
            input_shapes: accepted for compatibility: graphs keep their dynamic shapes.

        Raises:
            DataError: ``initialize`` was not called, or no value is to have a gradient.
            ModelError: the model has operators that Steep does not know, or no output depends on
                a value that is to have a gradient.
        """
        if self._config is None:
            raise DataError("The builder has no model yet.", remedy="initialize(model, config)")
        if not self._config.build_gradient_graph:
            return
        with_gradient = set(self._config.input_names_require_grad)
        info = self._info
        inputs = [name for name in info.user_input_names if name in with_gradient]
        wrt = [*inputs, *info.initializer_names_to_train]
        if not wrt:
            raise DataError(
                "There is nothing to differentiate with respect to.",
                expected="names in input_names_require_grad or initializer_names_to_train",
            )
        session = GradientSession(self._forward, wrt)
        outputs = info.user_output_names
        differentiable = [
            name for name, flows in zip(outputs, session.differentiable, strict=True) if flows
        ]
        self._training = training_graph.build(self._forward, differentiable, wrt)
        info.user_input_grad_names = {name: f"{name}_grad" for name in inputs}
        info.initializer_grad_names_to_train = [
            f"{name}_grad" for name in info.initializer_names_to_train
        ]
        info.output_grad_indices_non_differentiable = [
            i for i, name in enumerate(outputs) if name not in differentiable
        ]
        info.output_grad_indices_require_full_shape = list(range(len(outputs)))
        info.module_output_gradient_name = [f"{name}_grad" for name in differentiable]

    def get_gradient_model(self) -> bytes:
        """Return the training graph, for the ``InferenceSession`` of a ``TrainingAgent``.

        Raises:
            DataError: ``build`` was not called, or ``build_gradient_graph`` is off.
        """
        if self._training is None:
            raise DataError("There is no training graph yet.", remedy="build(config)")
        return bytes(self._training.SerializeToString())

    def get_forward_model(self) -> bytes:
        """Return the model with its weights as inputs."""
        return bytes(self._forward.SerializeToString())

    def get_graph_info(self) -> GraphInfo:
        """Return the names of the graphs' inputs and outputs."""
        return self._info

    get_model = get_gradient_model  # their names up to release 1.13
    get_inference_optimized_model = get_forward_model


class GradientGraphBuilder:
    """Makes the model of the gradients of a scalar output.

    Its outputs are the scalar and, with ``set_gradients_as_graph_outputs``, NAME_grad for each x;
    otherwise the gradients are inner values, which a caller makes outputs. ``steep.grad`` does it
    in one call.

    Args:
        serialized_model: bytes of the model.
        y_node_arg_names: the one output to differentiate.
        x_node_arg_names: inputs and initializers to differentiate with respect to.
        loss_node_arg_name: the same output.
        options: a ``GradientGraphConfiguration``.

    Raises:
        DataError: several outputs are to be differentiated, or one that is not the loss.
    """

    def __init__(
        self,
        serialized_model: bytes,
        y_node_arg_names: Collection[str],
        x_node_arg_names: Collection[str],
        loss_node_arg_name: str,
        options: GradientGraphConfiguration | None = None,
    ) -> None:
        if set(y_node_arg_names) != {loss_node_arg_name}:
            raise DataError(
                "Only one output can be differentiated, the loss.",
                expected=loss_node_arg_name,
                received=", ".join(sorted(y_node_arg_names)),
                remedy="steep.grad(model, wrt=…, outputs=…) takes several",
            )
        self._model, self._loss = serialized_model, loss_node_arg_name
        self._wrt = sorted(x_node_arg_names)
        self._options = options or GradientGraphConfiguration()
        self._gradient_model: onnx.ModelProto | None = None

    def build(self) -> None:
        """Make the model. Raises ModelError as ``steep.grad`` does."""
        model = grad(self._model, wrt=self._wrt, outputs=[self._loss])
        values = [output.name for output in model.graph.output][1:]
        for output, value, name in zip(model.graph.output[1:], values, self._wrt, strict=True):
            model.graph.node.append(onnx.helper.make_node("Identity", [value], [f"{name}_grad"]))
            output.name = f"{name}_grad"
        if not self._options.set_gradients_as_graph_outputs:
            model.graph.value_info.extend(model.graph.output[1:])
            del model.graph.output[1:]
        self._gradient_model = model

    def get_model(self) -> bytes:
        """Return the model's bytes. Raises DataError before ``build``."""
        if self._gradient_model is None:
            raise DataError("There is no gradient graph yet.", remedy="build()")
        return bytes(self._gradient_model.SerializeToString())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file. Raises DataError before ``build``, and IoError."""
        write_file(os.fspath(path), self.get_model())


def _require_known(setting: str, names: Sequence[str], available: Sequence[str]) -> None:
    for name in names:
        if name not in available:
            raise ModelError(
                f"The model has no value that {setting} names.",
                node=name,
                expected=", ".join(available) or "none is there",
                received=name,
            )

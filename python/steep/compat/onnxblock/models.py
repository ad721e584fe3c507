"""Blocks that make whole models: forward alone, or a pair for training and evaluation."""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import onnx
from onnx import helper

from steep.compat.onnxblock.base import Block, at_hand, info_of, prune, require_values, skeleton
from steep.errors import DataError, ModelError, ShapeError
from steep.onnx_graph.traverse import bodies_of

log = logging.getLogger("steep")

ARTIFACT = "steep.artifact"  # metadata key for the kind of a file

Parameters = tuple[list[onnx.TensorProto], list[onnx.TensorProto]]


def mark(model: onnx.ModelProto, kind: str, parameters: Sequence[str] = ()) -> None:
    """Record in a model's metadata its kind, and which of its inputs are parameters."""
    entries = [entry for entry in model.metadata_props if entry.key != ARTIFACT]
    del model.metadata_props[:]
    model.metadata_props.extend(entries)
    record = {"kind": kind, "parameters": list(parameters)}
    model.metadata_props.add(key=ARTIFACT, value=json.dumps(record))


def read_mark(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the record of ``mark``; {} if there is none."""
    for entry in model.metadata_props:
        if entry.key == ARTIFACT:
            try:
                record = json.loads(entry.value)
            except ValueError:
                return {}
            return record if isinstance(record, dict) else {}
    return {}


class ForwardBlock(Block):
    """A block whose result is the output of a model.

    >>> class WithLoss(ForwardBlock):
    ...     def build(self, scores):
    ...         return onnxblock.loss.MSELoss()(scores)
    >>> with onnxblock.base(model):
    ...     block = WithLoss()
    ...     block(model.graph.output[0].name)
    >>> block.to_model_proto()
    """

    def __init__(self) -> None:
        super().__init__()
        self._model: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add nodes; return the name of the output, or a tuple of names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build, and make the result the outputs of the model at hand; return their names.

        Raises:
            ModelError: a name is not one of the model's values, or the model is not valid.
        """
        result = super().__call__(*args, **kwargs)
        model = at_hand()
        _set_outputs(model, _names(result))
        check(model)
        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        return result

    def to_model_proto(self) -> onnx.ModelProto:
        """Return the model. Raises DataError before the block was called."""
        if self._model is None:
            raise _not_built("model")
        return self._model


class TrainingBlock(Block):
    """A block whose first result is the loss of a model to train.

    Parameters become inputs of both models: the checkpoint has their values. Running statistics of
    normalisations in training mode are parameters that are never trained. The engine generates the
    gradients when a ``Module`` reads the training model.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requires_grad: dict[str, bool] = {}
        self._parameters: Parameters | None = None
        self._models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add nodes; return the name of the loss, or a tuple of names that begins with it."""

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Make an initializer a parameter, which is trained or, with False, is not."""
        self._requires_grad[argument_name] = bool(value)

    def parameters(self) -> Parameters:
        """Return the trained parameters, and the others, in the order of the model.

        Raises:
            DataError: the block was not called yet.
        """
        if self._parameters is None:
            raise _not_built("parameters")
        return self._parameters

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return the models for training and evaluation. Raises DataError before the call."""
        if self._models is None:
            raise _not_built("models")
        return self._models

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build, and make the pair of models; return the names of their outputs.

        Raises:
            ModelError: a parameter is no initializer, the loss does not depend on a trained
                parameter, or the model is not valid.
            ShapeError: the loss does not have one element.
            DataError: no parameter is to be trained.
        """
        result = super().__call__(*args, **kwargs)
        model = at_hand()
        self._parameters = self._take_out(model)
        _set_outputs(model, _names(result))
        _require_scalar(model.graph.output[0])
        _require_path(model, [p.name for p in self._parameters[0]])
        names = [p.name for part in self._parameters for p in part]
        mark(model, "training", names)
        check(model)
        training, evaluation = onnx.ModelProto(), onnx.ModelProto()
        training.CopyFrom(model)
        evaluation.CopyFrom(model)
        _to_evaluation(evaluation.graph)
        mark(evaluation, "evaluation", names)
        check(evaluation)
        self._models = (training, evaluation)
        return result

    def _take_out(self, model: onnx.ModelProto) -> Parameters:
        """Turn the parameters into inputs of the model, and return them."""
        graph = model.graph
        there = {tensor.name: tensor for tensor in graph.initializer}
        floats = [t.name for t in graph.initializer if t.data_type in _FLOATS]
        for name in self._requires_grad:
            if name not in there:
                raise ModelError(
                    "A parameter is not an initializer of the model.",
                    node=name,
                    expected=", ".join(floats[:20]) or "initializers",
                    received=name,
                    remedy="onnx.load(path).graph.initializer lists them",
                )
        trained = [name for name, value in self._requires_grad.items() if value]
        if not set(trained) - set(statistics(graph, trained)):
            raise DataError(
                "There is no parameter to train.",
                expected="names of initializers in requires_grad",
                received=", ".join(trained) + ": running statistics" if trained else "none",
                remedy=f"name some of: {', '.join(floats[:20])}",
            )
        # Running statistics must be parameters: as constants, or trained, they would not be
        # updated.
        follow = statistics(graph, list(there))
        batch_statistics = [name for name in follow if self._requires_grad.get(name)]
        if batch_statistics:
            log.warning(
                "not trained, as running statistics follow the batches: %s", batch_statistics
            )
        trains = self._requires_grad | dict.fromkeys(follow, False)
        parameters: Parameters = ([], [])
        for name, tensor in there.items():
            if name in trains:
                parameter = onnx.TensorProto()
                parameter.CopyFrom(tensor)
                parameters[0 if trains[name] else 1].append(parameter)
        initializers = [t for t in graph.initializer if t.name not in trains]
        del graph.initializer[:]
        graph.initializer.extend(initializers)
        constants = {t.name for t in initializers}
        for value in [v for v in graph.input if v.name in constants]:
            graph.input.remove(value)  # old files also list initializers as inputs
        already = {value.name for value in graph.input}
        for p in (*parameters[0], *parameters[1]):
            if p.name not in already:
                graph.input.append(helper.make_tensor_value_info(p.name, p.data_type, p.dims))
        return parameters


_FLOATS = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)


def check(model: onnx.ModelProto) -> None:
    """Raise ModelError unless a model conforms to the ONNX standard."""
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(
            "ONNX's checker refuses the model.",
            expected="a model that follows the ONNX standard, below 2 GiB without its parameters",
            received=str(error).strip().partition("\n")[0],
        ) from error


def statistics(graph: onnx.GraphProto, names: Sequence[str]) -> list[str]:
    """Return the names that are running statistics of normalisations in training mode."""
    result = []
    for node in graph.node:
        trains = any(a.name == "training_mode" and a.i for a in node.attribute)
        if node.op_type == "BatchNormalization" and not node.domain and trains:
            result += [n for n in node.input[3:5] if n in names and n not in result]
    return result


def _names(result: str | Iterable[str] | None) -> list[str]:
    names = [result] if isinstance(result, str) else [*result] if result is not None else []
    if not names or not all(isinstance(name, str) for name in names):
        raise DataError("build() did not return names of values.", received=repr(result))
    return names


def _set_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    require_values(model, names, "output")
    if len(set(names)) != len(names):
        raise ModelError("An output is named twice.", received=", ".join(names))
    outputs = {value.name: value for value in model.graph.output}
    del model.graph.output[:]
    for name in names:
        # the inferred type may be more precise than the declared one
        info = info_of(model, name) or outputs.get(name)
        model.graph.output.append(info or onnx.ValueInfoProto(name=name))


def _require_scalar(loss: onnx.ValueInfoProto) -> None:
    shape = loss.type.tensor_type.shape
    has_shape = loss.type.tensor_type.HasField("shape")
    if has_shape and any(d.HasField("dim_param") or d.dim_value != 1 for d in shape.dim):
        extents = [d.dim_param or d.dim_value for d in shape.dim]
        raise ShapeError(
            "The first output is not a loss: it does not have exactly one element.",
            node=loss.name,
            expected="a scalar",
            received=str(extents),
            remedy='reduce it: reduction="mean", blocks.ReduceMean; or choose a loss',
        )


def _require_path(model: onnx.ModelProto, trained: Sequence[str]) -> None:
    graph = skeleton(model).graph
    del graph.output[1:]
    names = prune(graph)
    for name in trained:
        if name not in names:
            raise ModelError(
                "The loss does not depend on a parameter that is trained.",
                node=name,
                expected=f"a way to {graph.output[0].name}",
                received="none",
                remedy="leave it out of requires_grad",
            )


def _to_evaluation(graph: onnx.GraphProto) -> None:
    """Remove dropout, and normalise by running statistics; also in bodies of loops."""
    for node in list(graph.node):
        for body in bodies_of(node):
            _to_evaluation(body)
        if node.domain:
            continue
        if node.op_type == "Dropout":
            del node.input[1:]
        if node.op_type == "BatchNormalization":
            attributes = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend(attributes)
            at = list(graph.node).index(node) + 1
            for source, name in zip(node.input[3:5], node.output[1:3], strict=False):
                if name:
                    graph.node.insert(at, helper.make_node("Identity", [source], [name]))
            del node.output[1:]


def _not_built(what: str) -> DataError:
    return DataError(
        f"There is no {what} yet.",
        expected="a block that was called within onnxblock.base",
        received="one that was not",
        remedy="with onnxblock.base(model): block(output_name)",
    )

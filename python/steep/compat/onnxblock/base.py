"""The base of blocks: the current model, names in it, and the types of its values."""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper

from steep.compat.refusals import NotOffered
from steep.errors import DataError, IoError, ModelError
from steep.onnx_graph.traverse import read_by
from steep.session.custom_ops import register_ops

Path = str | os.PathLike[str]

_SMALL = 1024  # most elements of an integer initializer that shapes may depend on


class ModelAccessor:
    """The current model of blocks.

    Attributes:
        model: the ``onnx.ModelProto`` that blocks change.
    """

    def __init__(self, model: onnx.ModelProto, model_path: Path | None = None) -> None:
        self.model = model
        self._path = model_path

    @property
    def has_path(self) -> bool:
        """Whether ``base`` was given the path of the model's file."""
        return self._path is not None

    @property
    def path(self) -> Path:
        """Path of the model's file. Raises DataError if ``base`` was not given it."""
        if self._path is None:
            raise DataError(
                "The path of the model is not known.", remedy="onnxblock.base(model, model_path)"
            )
        return self._path


# Each thread has its own current model.
_at_hand: contextvars.ContextVar[ModelAccessor | None] = contextvars.ContextVar(
    "at_hand", default=None
)


@contextlib.contextmanager
def base(model: onnx.ModelProto, model_path: Path | None = None) -> Iterator[ModelAccessor]:
    """Let blocks build on a copy of a model: ``with base(model) as accessor``.

    Args:
        model: the model to copy.
        model_path: path of its file, if ``onnx.load`` did not load external data; they are read
            from the file's folder.

    Raises:
        DataError: it is no model, or another base is active.
        IoError: external data cannot be read.
    """
    if not isinstance(model, onnx.ModelProto):
        raise DataError(
            "A block needs a model.",
            expected="an onnx.ModelProto",
            received=type(model).__name__,
            remedy="onnx.load reads one; empty_base begins without",
        )
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if model_path is not None:
        _read_external(copy, model_path)
    with _as_base(copy, model_path) as accessor:
        yield accessor


@contextlib.contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Let blocks build on an empty model of an opset, by default the newest.

    Raises:
        DataError: another base is active.
    """
    opsets = [helper.make_opsetid("", opset_version or onnx.defs.onnx_opset_version())]
    graph = helper.make_graph([], "graph", [], [])
    model = helper.make_model(graph, producer_name="steep", opset_imports=opsets)
    with _as_base(model) as accessor:
        yield accessor


@contextlib.contextmanager
def custom_op_library(custom_op_library_path: Path) -> Iterator[Path]:
    """Register users' own operators, functions in a model file, while blocks build.

    >>> with onnxblock.custom_op_library("ops.onnx"), onnxblock.base(model):
    ...     block(name)

    Args:
        custom_op_library_path: as for ``steep.register_ops``. The operators are registered inside
            the context only; to run models that use them, register them again.

    Raises:
        NotOffered: it is a shared library, whose kernels another runtime would load.
        ModelError, IoError: as ``steep.register_ops``.
    """
    if os.path.splitext(custom_op_library_path)[1] not in (".onnx", ".pb"):
        raise NotOffered(
            "Libraries of custom operators are not loaded.",
            node="custom_op_library",
            expected="a model file of functions: ops.onnx",
            received=os.fsdecode(custom_op_library_path),
            remedy="steep.register_op(function, gradient=…) (docs/your_own.md)",
        )
    with register_ops(custom_op_library_path):
        yield custom_op_library_path


def _read_external(model: onnx.ModelProto, path: Path) -> None:
    folder = os.path.dirname(os.path.abspath(os.fsdecode(path)))
    try:
        onnx.external_data_helper.load_external_data_for_model(model, folder)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise IoError(
            "External data of a model cannot be read.",
            node=os.fsdecode(path),
            received=str(error),
            remedy="keep the files beside the model, or load the model with its data",
        ) from error


@contextlib.contextmanager
def _as_base(model: onnx.ModelProto, path: Path | None = None) -> Iterator[ModelAccessor]:
    if _at_hand.get() is not None:
        raise DataError(
            "Another onnxblock.base is active.",
            expected="one base at a time",
            received="a base within a base",
        )
    accessor = ModelAccessor(model, path)
    before = _at_hand.set(accessor)
    try:
        yield accessor
    finally:
        _at_hand.reset(before)


def at_hand() -> onnx.ModelProto:
    """Return the current model. Raises DataError outside of a base."""
    accessor = _at_hand.get()
    if accessor is None:
        raise DataError(
            "There is no model to build on.",
            expected="a block that is called within onnxblock.base or empty_base",
            received="a call outside",
            remedy="with onnxblock.base(model): …",
        )
    return accessor.model


class Block(ABC):
    """A part of a graph. ``build`` adds nodes to ``self.base`` and returns names of values.

    Attributes:
        base: the current model, while the block is called.
    """

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        """Accept ``temp_file_name`` for compatibility: no file is written."""
        self.base: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add nodes; return the name of the result, or a tuple of names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build on the current model; return the result of ``build``.

        Raises:
            DataError: there is no current model.
            ModelError: a name is not one of its values.
        """
        self.base = at_hand()
        return self.build(*args, **kwargs)

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """Return a copy of the current model with the types that ONNX's inference finds.

        Raises:
            DataError: there is no current model.
            ModelError: types in the model contradict each other.
        """
        model = at_hand()
        result = onnx.ModelProto()
        result.CopyFrom(model)
        graph = infer_types(model).graph
        del result.graph.value_info[:], result.graph.output[:]
        result.graph.value_info.extend(graph.value_info)
        result.graph.output.extend(graph.output)
        return result

    def add_node(self, op: str, inputs: Sequence[str], domain: str = "", **settings: Any) -> str:
        """Add a node with one output; return that output's name.

        Raises:
            ModelError: an input is not a value of the model.
        """
        model = at_hand()
        require_values(model, [name for name in inputs if name], op)
        if domain and domain not in {opset.domain for opset in model.opset_import}:
            model.opset_import.append(helper.make_opsetid(domain, 1))
        output = new_name(model, f"{op.lower()}_output")
        node = helper.make_node(op, inputs, [output], output, domain=domain, **settings)
        model.graph.node.append(node)
        return output

    def add_constant(self, stem: str, value: ArrayLike) -> str:
        """Add an initializer of a NumPy array; return its name."""
        model = at_hand()
        name = new_name(model, stem)
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a value; float32 if it cannot be inferred."""
        info = info_of(at_hand(), name)
        kind = 0 if info is None else info.type.tensor_type.elem_type
        return np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else np.dtype(np.float32)


def value_names(model: onnx.ModelProto) -> list[str]:
    """Return the names of inputs, initializers and outputs of nodes."""
    graph = model.graph
    names = [value.name for value in (*graph.input, *graph.initializer)]
    return names + [name for node in graph.node for name in node.output if name]


def require_values(model: onnx.ModelProto, names: Sequence[str], asked_by: str) -> None:
    """Raise ModelError unless the names are values of the model."""
    there = value_names(model)
    for name in names:
        if name in there:
            continue
        near = difflib.get_close_matches(str(name), there, 3) or there[:10]
        raise ModelError(
            "A block reads a value that the model does not have.",
            node=str(name),
            op=asked_by,
            expected=", ".join(near),
            received=str(name),
        )


def new_name(model: onnx.ModelProto, stem: str) -> str:
    """Return an unused name that begins with ``stem``; it is the same at each run."""
    names = set(value_names(model))
    number = 0
    while (name := f"{stem}::{number}") in names:
        number += 1
    return name


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without the bytes of large initializers, which are inputs in it."""
    result = onnx.ModelProto()
    result.CopyFrom(_without_data(model))
    there = {value.name for value in result.graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT64 and np.prod(tensor.dims) <= _SMALL:
            result.graph.initializer.append(tensor)
        elif tensor.name not in there:
            result.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return result


def info_of(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto | None:
    """Return the known type of a value, or None."""
    require_values(model, [name], "")
    graph = infer_types(model).graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.name == name and info.type.HasField("tensor_type"):
            return info
    return None


def infer_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without large data, with the types that ONNX's inference finds.

    Raises ModelError if they contradict each other.
    """
    try:
        return onnx.shape_inference.infer_shapes(skeleton(model))
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(
            "The types of the model contradict each other.", received=str(error).strip()
        ) from error


def prune(graph: onnx.GraphProto) -> set[str]:
    """Remove nodes and constants that no output needs; return the names of all values read."""
    names = {output.name for output in graph.output}
    path = []
    for node in reversed(graph.node):
        if names.intersection(node.output):
            path.append(node)
            names.update(read_by(node))
    nodes = [*reversed(path)]
    del graph.node[:]
    graph.node.extend(nodes)
    constants = [tensor for tensor in graph.initializer if tensor.name in names]
    del graph.initializer[:]
    graph.initializer.extend(constants)
    del graph.value_info[:]
    return names


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = onnx.GraphProto(name=model.graph.name or "graph")
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    result = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(model.functions)
    return result

"""Users' own operators and optimizers, as ONNX functions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from steep import _steep
from steep.errors import ModelError

Function = Any
"""An ONNX function: text for ``onnx.parser``, a FunctionProto, its bytes, or one of onnxscript."""


class _Serialisable(Protocol):
    def SerializeToString(self) -> bytes: ...


class Registration:
    """The functions that one call registered.

    ``unregister``, or the end of a ``with`` block, removes them. Models and sessions that were made
    in the meantime keep them. Functions that were registered before the call stay registered.

    Attributes:
        names: "domain.Name" of each new function.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def unregister(self) -> None:
        """Remove the functions. A second call does nothing."""
        names, self.names = self.names, ()
        for name in names:
            _steep.unregister_op(name)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()

    def __repr__(self) -> str:
        return f"Registration({', '.join(self.names)})"


def register_op(function: Function, gradient: Function | None = None) -> Registration:
    """Register an operator: a node with its domain and name stands for the function's body.

    All models that this process reads afterwards can use it. It is imported, differentiated,
    exported and run as any other operator. A model that ``export_onnx`` writes keeps the node.

    >>> steep.register_op(
    ...     '<domain: "my", opset_import: ["": 18]> Round (x) => (y) { y = Round (x) }',
    ...     gradient='<domain: "my", opset_import: ["": 18]> RoundGrad (x, y, dy) => (dx)'
    ...     " { dx = Identity (dy) }",
    ... )

    Args:
        function: text of ``onnx.parser``, an ``onnx.FunctionProto``, its bytes, or a function of
            onnxscript. Its domain must not be one of ONNX ("", "ai.onnx…") or Steep ("steep…"). Its
            nodes are operators of ONNX and operators that are registered already.
        gradient: a function in one of these forms, with any name. Its inputs are the operator's
            inputs, its outputs, and the gradients of its outputs (with the dtypes and shapes of the
            outputs). Its outputs are the gradients of the operator's inputs, in order: each has the
            dtype of its input, and its shape or a shape to which it broadcasts; "" means no
            gradient. The gradient of an output that is not float is absent; the gradient of an
            output that nothing reads is zeros. It may have attributes of the operator. Second
            derivatives differentiate its body. Without it, the body of ``function`` is
            differentiated.

    Returns:
        A ``Registration``, which can remove the operator.

    Raises:
        ModelError: the function cannot be read, calls an unknown operator, or calls itself; the
            gradient has the wrong number of inputs or outputs; the domain is reserved; or the name
            is registered with another body or gradient. To register the same function again does
            nothing. Later, a model raises it for a node that does not match the function, and for a
            gradient that does not match the dtype or shape of its input.
    """
    own = b"" if gradient is None else _serialise(gradient)
    return Registration(_steep.register_op(_serialise(function), own))


def register_optimizer(function: Function) -> Registration:
    """Register an optimizer; the function's name selects it: ``optimizer="lion"``.

    >>> steep.register_optimizer('''
    ...     <domain: "steep.optimizer", opset_import: ["": 18]>
    ...     momentum <beta: float = 0.9> (w, g, m, lr, step) => (w1, m1) {
    ...         b = Constant <value_float: float = @beta> ()
    ...         kept = Mul (b, m)
    ...         m1 = Add (kept, g)
    ...         change = Mul (lr, m1)
    ...         w1 = Sub (w, change)
    ...     }''')
    >>> TrainingSession("model.onnx", loss="mse", optimizer="momentum", attributes={"beta": 0.8})

    Args:
        function: as for ``register_op``, of the domain "steep.optimizer". It takes the parameter,
            its gradient, the states, the rate ``lr`` (a scalar) and ``step`` (int64, from 1), and
            returns the new parameter and the new states. All but ``step`` are float32, or float64
            for parameters of float64. States have the parameter's shape and start as zeros; their
            names are those of the inputs. The option ``attributes`` sets its attributes, except
            ``weight_decay``, which the option of that name sets.

    Returns:
        A ``Registration``, which can remove the optimizer.

    Raises:
        ModelError: as for ``register_op``; or a built-in optimizer has the name.
    """
    return Registration(_steep.register_optimizer(_serialise(function)))


def register_ops(
    file: str | os.PathLike[str], *, limits: _steep.Limits | None = None
) -> Registration:
    """Register the functions of a model file, as ``--ops`` of the program does.

    >>> steep.register_ops("ops.onnx")

    Args:
        file: an ONNX model; only its ``functions`` are read. Functions of the domain
            "steep.optimizer" are optimizers, all others are operators; NAMEGrad is the gradient of
            the operator NAME in the same domain. They may call each other.
        limits: a ``steep.Limits``: bounds on bytes and nodes.

    Returns:
        A ``Registration``, which can remove all of them.

    Raises:
        ModelError: one of them cannot be registered, and then none is; or the file has none.
        IoError: the file cannot be opened.
    """
    return Registration(_steep.register_ops(os.fspath(file), limits))


def _serialise(function: object) -> bytes:
    if isinstance(function, bytes):
        return function
    if isinstance(function, str):
        import onnx.parser

        try:
            proto: _Serialisable = onnx.parser.parse_function(function)
        except onnx.parser.ParseError as error:
            message = error.args[0] if error.args else ""
            raise ModelError(
                "The text of a function cannot be parsed.",
                expected="onnx.parser's syntax: <domain: …> Name (inputs) => (outputs) { nodes }",
                received=message.decode(errors="replace")
                if isinstance(message, bytes)
                else str(message),
            ) from error
        return proto.SerializeToString()
    if hasattr(function, "to_function_proto"):
        function = function.to_function_proto()
    if not hasattr(function, "SerializeToString"):
        raise ModelError(
            "The argument is not a function.",
            expected="text, bytes, an onnx.FunctionProto or a function of onnxscript",
            received=type(function).__name__,
        )
    content: bytes = function.SerializeToString()
    return content

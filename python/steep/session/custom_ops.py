"""Operators and optimizers of one's own, as ONNX functions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from steep import _steep
from steep.errors import ModelError

Function = Any
"""Text of ``onnx.parser``, an ``onnx.FunctionProto``, its bytes, or a function of onnxscript."""


class _Serialisable(Protocol):
    def SerializeToString(self) -> bytes: ...


class Registration:
    """What one call has registered, to be taken back by ``unregister`` or at the end of a ``with``.

    Models and sessions that were made meanwhile keep it. What had been registered before the call
    is not taken back.

    Attributes:
        names: "domain.Name" of each that is new.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def unregister(self) -> None:
        """Take it back. A second time does nothing."""
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
    """Register an operator: a node of its domain and name means the function's body.

    It is then imported, differentiated, exported and run as any other operator is, by everything
    in this process that reads a model later on. A model that ``export_onnx`` writes keeps the node
    as it was.

    >>> steep.register_op(
    ...     '<domain: "my", opset_import: ["": 18]> Round (x) => (y) { y = Round (x) }',
    ...     gradient='<domain: "my", opset_import: ["": 18]> RoundGrad (x, y, dy) => (dx)'
    ...     " { dx = Identity (dy) }",
    ... )

    Args:
        function: text of ``onnx.parser``, an ``onnx.FunctionProto``, its bytes, or a function of
            onnxscript. Its domain is neither ONNX's ("", "ai.onnx…") nor Steep's ("steep…"); its
            nodes are ONNX's operators and operators that are registered already.
        gradient: a function likewise, whatever its name. It takes the operator's inputs, its
            outputs, and the gradients of its outputs (each of its output's dtype and shape), and
            returns the gradients of the inputs, in their order: each of its input's dtype, and of
            its shape or of what that broadcasts to; "" for one that gets none. The gradient of an
            output that is not float is absent, that of one that nobody reads is zeros. Attributes
            are the operator's. Second derivatives differentiate its body. Without it the body of
            ``function`` is differentiated.

    Returns:
        A ``Registration``, which takes the operator back.

    Raises:
        ModelError: the function cannot be read, calls an operator that is not known, or itself; the
            gradient takes or returns another number of values; the domain is reserved; or the name
            is registered with another body or gradient. Registering the same again does nothing. A
            model raises it for a node that the function does not fit, and for a gradient of another
            dtype or shape than its input.
    """
    own = b"" if gradient is None else _serialised(gradient)
    return Registration(_steep.register_op(_serialised(function), own))


def register_optimizer(function: Function) -> Registration:
    """Register an optimizer, to be asked for by its function's name: ``optimizer="lion"``.

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
            with parameters of float64. States have the parameter's shape, begin as zeros, and are
            named as the inputs are. Its attributes are set by ``attributes``; one that is called
            ``weight_decay`` by ``weight_decay``.

    Returns:
        A ``Registration``, which takes the optimizer back.

    Raises:
        ModelError: as for ``register_op``; or an optimizer of Steep's has the name.
    """
    return Registration(_steep.register_optimizer(_serialised(function)))


def register_ops(
    file: str | os.PathLike[str], *, limits: _steep.Limits | None = None
) -> Registration:
    """Register the functions of a model file, as ``--ops`` of the program does.

    >>> steep.register_ops("ops.onnx")

    Args:
        file: an ONNX model, of which only ``functions`` are read. Those of the domain
            "steep.optimizer" are optimizers, the others operators; NAMEGrad is the gradient of the
            operator NAME of its domain. They may call each other.
        limits: a ``steep.Limits``: bounds on bytes and nodes.

    Returns:
        A ``Registration``, which takes them all back.

    Raises:
        ModelError: one of them cannot be registered, and so none is; or there is none.
        IoError: the file cannot be opened.
    """
    return Registration(_steep.register_ops(os.fspath(file), limits))


def _serialised(function: Any) -> bytes:
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
    serialised: bytes = function.SerializeToString()
    return serialised

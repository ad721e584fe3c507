"""``grad``: the ONNX model of a model's gradients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from steep import _steep
from steep.session.source import ModelProto, source_of


def grad(
    model: str | os.PathLike[str] | bytes | ModelProto,
    wrt: Sequence[str],
    outputs: Sequence[str] | None = None,
    *,
    limits: _steep.Limits | None = None,
) -> Any:
    """Differentiate a model; the result is a model of standard operators that any runtime can run.

    Its inputs are those of the model and then, for each differentiated output ``y`` that is not a
    scalar, ``grad_y``, of y's shape: the gradient that reaches it. A scalar's is 1. Its outputs are
    the differentiated ones and then, for each name ``x`` in ``wrt``, ``grad_x``: the gradient of
    the sum over outputs of ``(grad_y * y).sum()``. A name that is taken gets a number, as in
    ``grad_x_2``. Dynamic shapes stay dynamic; dropout is the identity. Where an operator has a
    gradient of its own (``register_op``), the model holds functions of the domain "steep", too, in
    which other runtimes see identities.

    >>> gradients = grad("model.onnx", wrt=["x", "weight"], outputs=["loss"])
    >>> session = InferenceSession(gradients)
    >>> loss, dx, dweight = session.run(None, {"x": x})

    Applied twice it gives second derivatives. The product of the Hessian and ``v``:

    >>> first = grad("model.onnx", wrt=["weight"], outputs=["loss"])
    >>> second = grad(first, wrt=["weight"], outputs=["grad_weight"])
    >>> session = InferenceSession(second)
    >>> (product,) = session.run(["grad_weight_2"], {"x": x, "grad_grad_weight": v})

    Args:
        model: path of the file, its bytes, or an ``onnx.ModelProto``.
        wrt: inputs and initializers to differentiate with respect to.
        outputs: outputs to differentiate; by default every float one.
        limits: a ``steep.Limits``: bounds on memory and nodes.

    Returns:
        An ``onnx.ModelProto``.

    Raises:
        ModelError: a name is unknown, an operator on the way has no gradient (all are listed), or
            one cannot be expressed in ONNX.
    """
    import onnx  # here: the package is imported in half of the time without it

    serialised = _steep.gradient_model(
        source_of(model), list(wrt), list(outputs or ()), limits=limits
    )
    return onnx.load_model_from_string(serialised)

"""``grad``: makes an ONNX model that computes the gradients of an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from steep import _steep
from steep.session.names import names_of
from steep.session.source import ModelProto, source_of

if TYPE_CHECKING:
    import onnx


def grad(
    model: str | os.PathLike[str] | bytes | ModelProto,
    wrt: Sequence[str],
    outputs: Sequence[str] | None = None,
    *,
    limits: _steep.Limits | None = None,
) -> onnx.ModelProto:
    """Differentiate a model; the result is a model of standard operators that any runtime can run.

    Inputs of the result: the inputs of the model, then ``grad_y`` for each differentiated output
    ``y`` that is not a scalar: the gradient of y, with the shape of y. For a scalar it is 1.
    Outputs of the result: the differentiated outputs, then ``grad_x`` for each name ``x`` in
    ``wrt``: the gradient of the sum over outputs of ``(grad_y * y).sum()``. If a name is taken, the
    new one gets a number, as in ``grad_x_2``. Dynamic shapes stay dynamic; dropout is the identity.
    If an operator has a custom gradient (``register_op``), the result also contains functions of
    the domain "steep", which are identities for other runtimes.

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
    import onnx  # not at the top: it doubles the import time of the package

    names = names_of(wrt, "wrt"), names_of(outputs, "outputs")
    content = _steep.gradient_model(source_of(model), *names, limits=limits)
    return onnx.load_model_from_string(content)

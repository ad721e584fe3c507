"""Gradients that stop: an operator of ours, which ONNX says as an Identity with metadata."""

from __future__ import annotations

from typing import Any

import torch
from onnxscript import opset18

from steep._steep import STOP_GRADIENT_KEY

_OPERATORS = torch.library.Library("steep", "DEF")
_OPERATORS.define("stop_gradient(Tensor x) -> Tensor")
_OPERATORS.impl("stop_gradient", lambda x: x.detach().clone(), "CompositeExplicitAutograd")
# by default autograd would note that it has no derivative, and the result would need a gradient
_OPERATORS.impl("stop_gradient", torch.library.fallthrough_kernel, "Autograd")


def stop_gradient(input: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor of any shape and dtype, which no gradient reaches."""
    if not input.dtype.is_floating_point:
        return input
    stopped: torch.Tensor = torch.ops.steep.stop_gradient(input)
    return stopped


def fixed(x: Any) -> Any:
    """Return an ONNX value that no gradient reaches: an Identity with metadata, standard ONNX."""
    y = opset18.Identity(x)
    y.producer().metadata_props[STOP_GRADIENT_KEY] = ""
    return y


TRANSLATIONS: dict[Any, Any] = {torch.ops.steep.stop_gradient.default: fixed}
"""For torch.onnx.export of what torch.export captured."""

"""Results of an ONNX graph in 16 bits, where PyTorch's autocast returns 16 bits."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import torch
from onnx import TensorProto, helper

_HALVES = {torch.float16: TensorProto.FLOAT16, torch.bfloat16: TensorProto.BFLOAT16}


def narrow_outputs(graph: onnx.GraphProto, results: Sequence[object]) -> None:
    """Cast float32 outputs to the dtype of PyTorch's results, which are the last outputs.

    The engine then writes 16 bits at once, and reads gradients as PyTorch makes them. Converting
    results afterwards would take memory for both, and for both gradients.
    """
    outputs = graph.output[len(graph.output) - len(results) :]
    for output, result in zip(outputs, results, strict=True):
        dtype = _HALVES.get(result.dtype) if isinstance(result, torch.Tensor) else None
        kind = output.type.tensor_type
        if dtype is None or kind.elem_type != TensorProto.FLOAT:
            continue
        wide, output.name = output.name, f"{output.name}.narrow"
        graph.node.append(helper.make_node("Cast", [wide], [output.name], to=dtype))
        kind.elem_type = dtype

"""PyTorch's exporter to ONNX."""

from __future__ import annotations

from torch._export.passes.lift_constants_pass import ConstantAttrMap, lift_constants_pass
from torch.onnx._internal.exporter import _building as building
from torch.onnx._internal.exporter._core import (
    _exported_program_to_onnx_program as exported_program_to_onnx_program,
)
from torch.onnx._internal.exporter._errors import ConversionError
from torch.onnx._internal.exporter._fx_passes import insert_type_promotion_nodes
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.onnx._internal.exporter._tensors import SymbolicTensor

__all__ = [
    "ConstantAttrMap",
    "ConversionError",
    "ONNXRegistry",
    "SymbolicTensor",
    "building",
    "exported_program_to_onnx_program",
    "insert_type_promotion_nodes",
    "lift_constants_pass",
]

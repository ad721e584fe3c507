"""PyTorch's exporter to ONNX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
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
    "conditions_on_extents",
    "exported_program_to_onnx_program",
    "insert_type_promotion_nodes",
    "lift_constants_pass",
]


def conditions_on_extents(
    program: torch.export.ExportedProgram, without: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield conditions on symbolic extents that code asked for: each as text, with its line.

    Args:
        program: a captured program, which is right where they hold.
        without: folders of code whose conditions do not matter.
    """
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    environments = [v.fake_mode.shape_env for v in values if hasattr(v, "fake_mode")]
    symbolic = {str(symbol) for symbol in program.range_constraints}
    for guard in environments[0].guards if environments else ():
        place = guard.sloc.framework_loc
        file = getattr(place, "filename", None)
        names = {str(symbol) for symbol in guard.expr.free_symbols}
        if file is not None and names & symbolic and not file.startswith(tuple(without)):
            yield str(guard.expr), f"{file}:{place.lineno}"

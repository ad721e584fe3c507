"""Nodes of mixed precision: kernels that read or write bfloat16 and compute in float32.

Each is compared with its decomposition, which widens first. `dtype` is 1 for float32, 16 for
bfloat16: the type of the first output, by default that of the operand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

F32, BF16 = 1, 16


@dataclass(frozen=True)
class Narrow:
    op: str
    inputs: tuple[Any, ...]  # "16 4x8": bfloat16 of that shape; "32 8": float32; an array: itself
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    @property
    def name(self) -> str:
        kinds = [x if isinstance(x, str) else "-" if x is None else "ints" for x in self.inputs]
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return "-".join([self.op, "_".join(kinds).replace(" ", ":"), attrs])

    def arrays(self) -> list[np.ndarray | None]:
        rng = np.random.default_rng(len(self.name))
        made: list[np.ndarray | None] = []
        for x in self.inputs:
            if not isinstance(x, str):
                made.append(x)
                continue
            bits, _, shape = x.partition(" ")
            values = rng.uniform(-2, 2, [int(n) for n in shape.split("x") if n])
            made.append(values.astype(ml_dtypes.bfloat16 if bits == "16" else np.float32))
        return made


NARROW_ROWS: list[Narrow] = []


def row(op: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> None:
    NARROW_ROWS.append(Narrow(op, inputs, attrs, outputs))


for _dtype in (F32, BF16):
    for _a, _b in (
        ("4x8", "8x5"),
        ("70x96", "96x33"),
        ("3x40x64", "64x96"),
        ("2x3x17x16", "2x3x16x17"),
        ("1x7", "7x1"),
        ("0x4", "4x3"),
        ("3x0", "0x4"),
    ):
        row("steep.MatMul", f"16 {_a}", f"16 {_b}", dtype=_dtype)
    row("steep.MatMul", "16 64x48", "16 64x80", perm_a=[1, 0], dtype=_dtype)
    row("steep.MatMul", "16 64x48", "16 80x48", perm_b=[1, 0], dtype=_dtype)
    row("steep.MatMul", "16 64x48", "16 48x80", "32 80", dtype=_dtype)
    row("steep.MatMul", "16 64x48", "16 48x80", "16 80", dtype=_dtype)
    row("steep.MatMul", "16 64x48", "16 48x80", "32 80", alpha=0.125, dtype=_dtype)
    row("steep.MatMul", "16 64x48", "16 48x80", "32 80", perm_y=[1, 0], dtype=_dtype)
    row("steep.MatMul", "16 9x8", "16 8x6", "32 6", activation="Relu", dtype=_dtype)
    row(
        "steep.MatMul",
        "16 5x24x4x16",
        "16 5x4x16x24",
        perm_a=[0, 2, 1, 3],
        perm_y=[0, 2, 1, 3],
        dtype=_dtype,
    )

    # As long as a vocabulary: in parts.
    row("steep.MatMul", "16 257x16390", "16 16390x64", "32 64", alpha=0.5, dtype=_dtype)
    row("steep.MatMul", "16 66x65", "16 66x16401", perm_a=[1, 0], perm_y=[1, 0], dtype=_dtype)

row("steep.MatMul", "16 70x96", "16 96x33")
row("steep.MatMul", "16 70x96", "16 96x33", None, "32 70x33", dtype=F32)
row("steep.MatMul", "16 96x70", "16 96x33", None, "16 70x33", perm_a=[1, 0])
for _shape, _to in (("70x96", [96]), ("5x7x96", [7, 1]), ("3000x3", [3]), ("40", []), ("0x4", [4])):
    row("steep.SumTo", f"16 {_shape}", np.array(_to, np.int64), dtype=F32)
    row("steep.SumTo", f"16 {_shape}", np.array(_to, np.int64))
row("steep.SumTo", "32 6x8", np.array([8], np.int64), dtype=F32)

_labels = np.array([1, 0, 39, 7], np.int64)
_some_ignored = np.array([1, -100, 39, -100], np.int32)
for _reduction in ("mean", "sum", "none"):
    for _l in (_labels, _some_ignored):
        for _w in (None, "32 40"):
            _attrs = {"reduction": _reduction, "ignore_index": -100}
            if _w is None or _reduction == "mean":
                row("steep.SoftmaxCrossEntropy", "16 4x40", _l, _w, outputs=3, dtype=F32, **_attrs)
    for _logits, _dtype in (("16", BF16), ("32", BF16), ("16", F32)):
        row(
            "steep.SoftmaxCrossEntropyGrad",
            "32 4" if _reduction == "none" else "32 ",
            f"{_logits} 4x40",
            _some_ignored,
            "32 4",
            "32 4",
            dtype=_dtype,
            reduction=_reduction,
            ignore_index=-100,
        )
row("steep.SoftmaxCrossEntropy", "16 3x5000", np.array([4999, 0, 1]), outputs=3, dtype=F32)

for _columns in (1, 7, 64, 100):
    row(
        "steep.LayerNormalizationGrad",
        f"16 40x{_columns}",
        f"32 40x{_columns}",
        f"32 {_columns}",
        "32 40x1",
        "32 40x1",
        axis=-1,
        outputs=3,
    )

# Several slices for one row are added in float32.
for _base in ([], ["16 6x300"]):
    row("steep.GatherGrad", "16 5x300", np.array([1, -1, 1, 0, 1]), np.array([6, 300]), *_base)
row(
    "steep.GatherGrad",
    "16 3x4x70",
    np.array([[2, 0, 2, 2]], np.int32),
    np.array([3, 90, 70]),
    axis=1,
)

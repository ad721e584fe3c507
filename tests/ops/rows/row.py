"""What a row of the operators' table says, and the makers of its inputs."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

# A scalar, nothing at all, one element, and lengths on either side of whole vectors.
SHAPES = [
    (),
    (1,),
    (5,),
    (33,),
    (0, 3),
    (1, 1),
    (4, 16),
    (2, 3, 4),
    (3, 0, 2),
    (2, 1, 3, 5),
]

Make = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Row:
    """One operator with one set of attributes and inputs; every check of test_ops.py runs on it."""

    op: str
    inputs: tuple[Make | np.ndarray | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    # The same in PyTorch: tensors (None where absent) → a tensor, or a tuple of them and of None.
    torch: Callable[..., Any] | None = None
    # ONNX's reference evaluator computes it too (and is right).
    reference: bool = True
    # … but in single precision whatever the inputs are.
    single: bool = False
    # The operator is defined to compute so: no closer to PyTorch either, and no differences.
    within_single: bool = False
    # Smooth where the inputs lie: central differences make sense.
    smooth: bool = True
    # Float inputs to which the rule gives no gradient on purpose.
    frozen: tuple[int, ...] = ()
    # Outputs for which a gradient is given; None: all float ones.
    seeded: tuple[int, ...] | None = None
    # The attributes ask for double: a row for float64 only.
    double: bool = False
    note: str = ""

    @functools.cached_property
    def name(self) -> str:
        parts = []
        for x in self.inputs:
            made = x(np.random.default_rng(0)) if callable(x) else x
            if made is None:
                parts.append("-")
                continue
            kind = "" if callable(x) else f"{made.dtype.kind}{made.dtype.itemsize}:"
            few = kind and made.ndim < 2 and made.size <= 4
            parts.append(kind + (str(made.tolist()) if few else "x".join(map(str, made.shape))))
        attrs = ",".join(
            f"{k}={v.name}" if isinstance(v, onnx.GraphProto) else f"{k}={v}"
            for k, v in self.attrs.items()
            if k != "body"
        )
        return "-".join(filter(None, [self.op, "_".join(parts), attrs, self.note]))

    def arrays(self, dtype: type[np.floating]) -> list[np.ndarray | None]:
        """The inputs, the same at every call; those of random floats in `dtype`."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        made: list[np.ndarray | None] = []
        for x in self.inputs:
            if x is None or isinstance(x, np.ndarray):
                made.append(None if x is None else x.copy())
            else:
                made.append(x(rng).astype(dtype))
        return made


def floats(
    *shape: int, low: float = -2.0, high: float = 2.0, away: tuple[float, ...] = (), margin=0.05
) -> Make:
    """Uniform in [low, high], and at least `margin` away from each kink in `away`."""

    def make(rng: np.random.Generator) -> np.ndarray:
        x = rng.uniform(low, high, shape)
        for kink in away:
            near = np.abs(x - kink) < margin
            x = np.where(near, kink + np.where(x < kink, -margin, margin) * 1.5, x)
        return np.asarray(x)

    return make


def exactly(values: Any) -> Make:
    """These very numbers, as floats of whatever precision is tested."""
    return lambda rng: np.asarray(values, np.float64)


def apart(*shape: int) -> Make:
    """Numbers no two of which are closer than 0.1: a maximum among them has no ties."""

    def make(rng: np.random.Generator) -> np.ndarray:
        count = int(np.prod(shape))
        return (rng.permutation(count) * 0.1 - count * 0.05).reshape(shape)

    return make


def ints(*values: Any) -> np.ndarray:
    """int64: a vector of the arguments, or the one list given."""
    return np.array(
        values[0] if len(values) == 1 and isinstance(values[0], list) else values, np.int64
    )


def integer(value: int) -> np.ndarray:
    """An int64 scalar."""
    return np.array(value, np.int64)


def bools(*shape: int) -> np.ndarray:
    """An irregular but fixed pattern."""
    return (np.arange(int(np.prod(shape))) * 5 % 7 < 3).reshape(shape)


def table() -> tuple[list[Row], Callable[..., None]]:
    """An empty table and the function that adds a row: row(op, *inputs, attrs=…, torch=…, …)."""
    rows: list[Row] = []

    def row(op: str, *inputs: Make | np.ndarray | None, **more: Any) -> None:
        rows.append(Row(op, inputs, **more))

    return rows, row

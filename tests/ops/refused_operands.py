"""What becomes of operands that a node does not take, a line each: `python refused_operands.py`.

Run twice under different MALLOC_PERTURB_, and compared: bytes outside of a tensor show.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
from nodes import evaluate, gradients, is_float
from rows import ROWS
from rows.row import Row

import steep

KINDS = (np.float64, np.int8, np.int32, bool)


def chosen() -> list[Row]:
    """Of each of ONNX's operators the row with the most operands, and of several the largest."""
    best: dict[str, tuple[tuple[int, int], Row]] = {}
    for row in ROWS:
        if row.op.startswith("steep."):
            continue  # no file says them
        arrays = row.arrays(np.float64 if row.double else np.float32)
        sizes = [0 if x is None else x.size for x in arrays]
        if max(sizes, default=0) > 2000:
            continue
        rank = (sum(s > 0 for s in sizes), sum(sizes))
        if row.op not in best or best[row.op][0] < rank:
            best[row.op] = (rank, row)
    return [row for _, row in best.values()]


def refused_arrays(x: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """`x` without an element, with one less, of another rank, in other types."""
    found = [("nothing", np.zeros(0, x.dtype)), ("deeper", x[None])]
    if x.ndim:
        found += [("shorter", x[..., :-1]), ("flat", x.reshape(-1)), ("first", x.reshape(-1)[:1])]
    return found + [(np.dtype(k).name, x.astype(k)) for k in KINDS if x.dtype != k]


def told(row: Row, arrays: list[np.ndarray | None]) -> str:
    """The results and their gradients, or the error."""
    try:
        results = evaluate(row, arrays)
        floats = [np.ones_like(y) if is_float(y) else None for y in results]
        found = [*results]
        if any(y is not None for y in floats):
            found += gradients(row, arrays, floats).values()
    except steep.Error as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"raw {type(error).__name__}: {error}"
    digest = hashlib.sha1()
    for y in found:
        digest.update(b"none" if y is None else f"{y.dtype}{y.shape}".encode() + y.tobytes())
    return digest.hexdigest()


def main() -> None:
    for row in chosen():
        whole = row.arrays(np.float64 if row.double else np.float32)
        for i, x in enumerate(whole):
            for name, other in [] if x is None else refused_arrays(x):
                arrays = [*whole[:i], np.array(other, order="C"), *whole[i + 1 :]]
                sys.stdout.write(f"{row.op} input {i} {name}: {told(row, arrays)!r}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Operators under changed attributes, shapes and types: a forward run and a step of each mutant.

    python tests/attack/operators.py [--runs 20000] [--seed 0] [--only com.microsoft]

A run ends with a result or with a typed error of Steep's. An InternalError, another exception, a
signal, and 20 s without an end are findings. Prints each finding with its seed, and a line ATTACK.
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import random
import resource
import sys
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tqdm import tqdm

sys.path.append(str(Path(__file__).parents[1] / "ops"))

import steep

SECONDS = 20
MEMORY = 4 << 30  # of address space
INTEGERS = (0, -1, 1, 2, 3, 7, -7, 64, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, math.inf, -math.inf, math.nan)
TEXTS = ("", "NOTSET", "relu", "linear", "none", "mean", "\N{SNOWMAN}", "x" * 300)
DTYPES = (np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_)


def mutate_attribute(attrs: dict[str, Any], rng: random.Random) -> None:
    """Change, add or remove one attribute."""
    if attrs and rng.random() < 0.8:
        name = rng.choice(sorted(attrs))
        value = attrs[name]
        if rng.random() < 0.1:
            del attrs[name]
        elif isinstance(value, int):
            attrs[name] = rng.choice(INTEGERS)
        elif isinstance(value, float):
            attrs[name] = rng.choice(FLOATS)
        elif isinstance(value, str):
            attrs[name] = rng.choice(TEXTS)
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
            changed = list(value)
            changed[rng.randrange(len(changed))] = rng.choice(INTEGERS)
            attrs[name] = changed[: rng.choice([len(changed), 1])]
    else:
        name = rng.choice(["axis", "alpha", "epsilon", "num_heads", "do_rotary", "transA", "scale"])
        attrs[name] = rng.choice([rng.choice(INTEGERS), rng.choice(FLOATS), rng.choice(TEXTS)])


def mutate_array(x: np.ndarray, rng: random.Random) -> np.ndarray:
    """Change the rank, an extent, the type or the values of one input."""
    kind = rng.randrange(5)
    if kind == 0:
        return x[None] if rng.random() < 0.5 or x.ndim == 0 else x[0] if len(x) else x.reshape(0)
    if kind == 1 and x.ndim:
        axis = rng.randrange(x.ndim)
        extent = rng.choice([0, 1, max(0, x.shape[axis] - 1), x.shape[axis] + 1])
        return np.resize(x, (*x.shape[:axis], extent, *x.shape[axis + 1 :]))
    if kind == 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x.astype(rng.choice(DTYPES))
    if kind == 3 and x.size:
        changed = x.copy()
        values = FLOATS if x.dtype.kind == "f" else INTEGERS
        with np.errstate(all="ignore"):
            changed.flat[rng.randrange(x.size)] = np.asarray(rng.choice(values)).astype(x.dtype)
        return changed
    return np.zeros((0,), x.dtype) if rng.random() < 0.3 else np.repeat(x, 2, 0) if x.ndim else x


def mutant(seed: int, rows: list[Any]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one changed node, and what it is fed. The loss is the mean of its first result."""
    rng = random.Random(seed)
    row = rng.choice(rows)
    attrs = copy.deepcopy(row.attrs)
    arrays = row.arrays(np.float32)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        if rng.random() < 0.4:
            mutate_attribute(attrs, rng)
        else:
            i = rng.randrange(len(arrays))
            x = arrays[i]
            if rng.random() < 0.1 or x is None:
                arrays[i] = None if x is not None else np.ones((2, 3), np.float32)
            else:
                arrays[i] = mutate_array(x, rng)
    names = ["" if x is None else f"x{i}" for i, x in enumerate(arrays)]
    given = {n: x for n, x in zip(names, arrays, strict=True) if x is not None}
    # fed, of any extents; or in the file, where it is trained, or read while building
    fed = {n: x for n, x in given.items() if rng.random() < 0.5}
    domain, _, op = row.op.rpartition(".")
    values = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attrs.items()
    }
    outputs = [f"y{i}" for i in range(row.outputs)]
    node = helper.make_node(op, names, outputs, domain=domain, **values)
    graph = helper.make_graph(
        [node, helper.make_node("ReduceMean", ["y0"], ["loss"], keepdims=0)],
        "mutant",
        [
            helper.make_tensor_value_info(
                n,
                helper.np_dtype_to_tensor_dtype(x.dtype),
                [f"{n}_{i}" for i in range(x.ndim)] if rng.random() < 0.5 else x.shape,
            )
            for n, x in fed.items()
        ],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(x, n) for n, x in given.items() if n not in fed],
    )
    opsets = {"": onnx.defs.onnx_opset_version(), **({domain: 1} if domain else {})}
    ids = [helper.make_opsetid(*o) for o in opsets.items()]
    return helper.make_model(graph, opset_imports=ids, ir_version=10), fed


def attack(seed: int, rows: list[Any]) -> str:
    """Run one mutant forward and through one step; return what a finding is, else nothing."""
    try:
        model, fed = mutant(seed, rows)
        file = model.SerializeToString()
    except (ValueError, TypeError, AttributeError):  # no such attribute can be written
        return ""
    for what in ("run", "step"):
        try:
            if what == "run":
                steep.InferenceSession(file).run(None, fed)
            else:
                steep.TrainingSession(file, optimizer="sgd", lr=0.0).step(**fed)
        except steep.InternalError as error:
            return f"{what}: InternalError: {error}"
        except (steep.Error, MemoryError):
            pass
        except Exception as error:
            return f"{what}: {type(error).__name__}: {error}"
    return ""


def rows_of(only: str) -> list[Any]:
    """The rows whose operator's name begins so."""
    from rows import ROWS

    return [row for row in ROWS if row.op.startswith(only)]


def work(link: Connection, only: str) -> None:
    """Answer seeds until the other end is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    rows = rows_of(only)
    while (seed := link.recv()) is not None:
        link.send(attack(seed, rows))


def main() -> int:
    """Run the mutants that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="com.microsoft", help="the beginning of operators' names")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    begin, findings, worker = time.monotonic(), 0, None
    for seed in (bar := tqdm(range(options.seed, options.seed + options.runs), unit="mutant")):
        if worker is None:
            link, end = context.Pipe()
            worker = context.Process(target=work, args=(end, options.only), daemon=True)
            worker.start()
            end.close()
            link.send(seed)
            ready = link.poll(120)  # the first answer waits for imports
        else:
            link.send(seed)
            ready = link.poll(SECONDS)
        try:
            said = link.recv() if ready else f"no end within {SECONDS} s"
        except EOFError:
            worker.join()
            ready, said = False, f"the process ended with {worker.exitcode}"
        if not ready:
            worker.kill()
            worker = None
        if said:
            findings += 1
            bar.write(f"seed {seed}: {' '.join(said.split())[:300]}", file=sys.stdout)
    print(
        f"ATTACK operators/{options.only} {options.runs} {findings} {time.monotonic() - begin:.1f}"
    )
    return findings > 0


if __name__ == "__main__":
    sys.exit(main())

"""Write docs/operators.md: what Steep knows of each of ONNX's operators, found by trying.

Opsets come from ONNX's schemas, passed node tests from tests/conformance, gradients and element
types from running the rows of tests/ops. ``--check`` only says whether the file is up to date.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT), str(ROOT / "tests" / "ops")]

import nodes  # noqa: E402
from rows import ROWS  # noqa: E402
from rows.row import Row  # noqa: E402
from tests.conformance import suite  # noqa: E402

import steep  # noqa: E402
from steep import _steep  # noqa: E402

FILE = ROOT / "docs" / "operators.md"
SHORT = {"double": "f64", "float": "f32", "float16": "f16", "bfloat16": "bf16"}
NARROW = {
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
}

HEAD = """# Operators

For users who want to know whether their model's operators run, and train.

This page lists what Steep supports of each of ONNX's operators. `make operators` writes it; do not
edit it.

- **Opsets**: versions of the operator that ONNX defines from opset 7 on; all of them are read.
- **Node tests**: how many of the ONNX project's own tests with the operator pass
  (`tests/conformance`).
- **Gradient**: the inputs that get one. "none": the derivative is zero or undefined. "through its
  parts": the operator is decomposed into others and has no row of its own.
- **Types**: types of the first input that run on the CPU, of those that ONNX allows.
- **Kernels**: those of the CPU provider, fastest first. "parts": the operator runs as other
  operators. "view": it costs nothing.

{summary}. Strings, images and the operators of `ai.onnx.ml` are refused.

| operator | opsets | node tests | gradient | types | kernels |
| --- | --- | --- | --- | --- | --- |
"""


def schemas() -> dict[str, list[onnx.defs.OpSchema]]:
    """ONNX's operators by name, each with its versions, oldest first."""
    by_name = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in ("", "ai.onnx.preview", "ai.onnx.preview.training"):
            by_name[schema.name].append(schema)
    alive = {}
    for name, versions in sorted(by_name.items()):
        versions.sort(key=lambda s: s.since_version)
        if not versions[-1].deprecated:
            alive[name] = versions
    return alive


def node_tests() -> tuple[Counter[str], Counter[str]]:
    """By operator: tests that have it, and those of them that pass."""
    expected = suite.read_list()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = onnx.backend.test.loader.load_model_tests(kind="node")
    all_tests: Counter[str] = Counter()
    passes: Counter[str] = Counter()
    ops: dict[str, set[str]] = {}
    for case in sorted(cases, key=lambda c: c.name):
        base = case.name.split("_expanded")[0]
        if case.name == base or base not in ops:
            ops[case.name] = {n.op_type for n in case.model.graph.node}
        for op in ops.get(base, ops.get(case.name, set())):
            all_tests[op] += 1
            passes[op] += case.name not in expected
    return all_tests, passes


def gradient_inputs(rows: list[Row]) -> set[int]:
    """Numbers of the inputs that get a gradient in some row."""
    numbers: set[int] = set()
    for row in rows:
        arrays = row.arrays(np.float64)
        try:
            outputs = nodes.evaluate(row, arrays)
            seeds = [np.ones_like(y) if y.dtype.kind == "f" else None for y in outputs]
            wrt = [i for i, x in enumerate(arrays) if nodes.is_float(x) and i not in numbers]
            slopes = nodes.gradients(row, arrays, seeds, wrt)
        except steep.Error:
            continue
        numbers |= {i for i, g in slopes.items() if g is not None}
    return numbers


def allowed(schema: onnx.defs.OpSchema) -> dict[int, list[str]]:
    """Element types of the inputs that share the first one's type."""
    if not schema.inputs:
        return {}
    first = schema.inputs[0].type_str
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    types = [t[7:-1] for t in constraints.get(first, [first]) if t.startswith("tensor(")]
    variadic = schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    count = 16 if variadic else len(schema.inputs)
    last = len(schema.inputs) - 1
    alike = [i for i in range(count) if schema.inputs[min(i, last)].type_str == first]
    return dict.fromkeys(alike, types)


def numpy_type(name: str) -> np.dtype | None:
    """ONNX's name of an element type as NumPy's type; None for those that Steep refuses."""
    name = {"float": "float32", "double": "float64", **NARROW}.get(name, name)
    if name in ("string", "complex64", "complex128"):
        return None
    if hasattr(ml_dtypes, name):
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name) if hasattr(np, name) else None


def running_types(schema: onnx.defs.OpSchema, rows: list[Row]) -> list[str]:
    """Types with which one of the rows runs: in the inputs that share it, or in all of floats."""
    alike = allowed(schema)
    runs = []
    for name in alike.get(0, []):
        dtype = numpy_type(name)
        if dtype is not None and any(runs_in(dtype, row, set(alike)) for row in rows[:6]):
            runs.append(name)
    return runs


def runs_in(dtype: np.dtype, row: Row, alike: set[int]) -> bool:
    """Whether `row` runs with `dtype` in the inputs `alike`, or in every one of floats.

    ONNX lets a normalization's scale and an attention's values have a type of their own, but the
    bodies that it gives for them do not.
    """
    arrays = row.arrays(np.float32)
    floats = {i for i, x in enumerate(arrays) if nodes.is_float(x)}
    for group in (alike, alike | floats):
        typed = [
            x if x is None or i not in group else (np.abs(x) + 1).astype(dtype)
            for i, x in enumerate(arrays)
        ]
        try:
            nodes.evaluate(row, typed)
        except (steep.Error, TypeError):
            continue
        return True
    return False


def short_types(names: list[str]) -> str:
    """Families of types in few words."""
    rest = [SHORT.get(n, n) for n in names]
    words = []
    for word, family in (
        ("floats", ["f64", "f32", "f16", "bf16"]),
        ("ints", [f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)]),
        ("float8", [n for n in NARROW if "8e" in n and "e8" not in n]),
        ("int4", ["int4", "uint4"]),
        ("int2", ["int2", "uint2"]),
    ):
        if set(family) <= set(rest):
            words.append(word)
            rest = [n for n in rest if n not in family]
    return ", ".join(words + sorted(rest))


def row_of(name: str, versions: list[onnx.defs.OpSchema], tests, passes) -> str:
    """One line of the table."""
    newest = versions[-1]
    full = f"{newest.domain}.{name}" if newest.domain else name
    op = nodes.TABLE.get(full)
    rows = [r for r in ROWS if r.op == full]
    since = [v.since_version for v in versions]
    old = [v for v in since if v <= 7]
    opsets = ", ".join(str(v) for v in (old[-1:] + [v for v in since if v > 7]))
    count = f"{passes[name]} of {tests[name]}" if tests[name] else "–"
    kernels = ", ".join(dict.fromkeys(_steep.kernels(name)))
    if op is None:
        kernels = kernels or "parts" * bool(passes[name])
    else:
        kernels = kernels or ("view" if op["view"] else "parts" if op["has_decompose"] else "")
    names = [p.name for p in newest.inputs]
    variadic = names and newest.inputs[-1].option.name == "Variadic"
    inputs = sorted(gradient_inputs(rows))
    labels = [names[min(i, len(names) - 1)] + ("…" * bool(variadic)) for i in inputs]
    stops = op is not None and op["stops_gradient"]
    gradient = ", ".join(dict.fromkeys(labels)) or "none" * (stops or bool(rows))
    if op is None and not rows and kernels == "parts" and newest.inputs:
        gradient = "through its parts"
    types = short_types(running_types(newest, rows))
    domain = f" ({newest.domain})" if newest.domain else ""
    return f"| {name}{domain} | {opsets} | {count} | {gradient} | {types} | {kernels} |\n"


def text() -> str:
    """The whole file."""
    tests, passes = node_tests()
    expected, total = suite.read_list(), len(suite.node_tests())
    kinds = ["passes"] * (total - len(expected)) + [o.kind for o in expected.values()]
    body = "".join(row_of(n, v, tests, passes) for n, v in schemas().items())
    summary = suite.summary(kinds)
    return HEAD.format(summary=summary[0].upper() + summary[1:]) + body


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the file is out of date")
    check = parser.parse_args().check
    now = text()
    if check:
        return int(not FILE.exists() or FILE.read_text() != now)
    FILE.write_text(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())

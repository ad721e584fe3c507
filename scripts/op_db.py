#!/usr/bin/env python3
"""Compares ORTModule with eager PyTorch over PyTorch's own operator database, dtype by dtype.

usage: scripts/op_db.py [--only NAME …] [--dtypes float64 …] [--jobs 2] [--update]
       [--out build/op_db.json]

Each operator of ``torch.testing._internal.common_methods_invocations.op_db`` is called with its
sample inputs, those of one form (the same arguments that are no tensors, the same ranks) one after
the other in one module, so that extents change between two calls. Results, their dtypes, and the
gradients of all floating-point inputs are compared. What differs fails the run, unless
``tests/op_db/known.txt`` has it with a reason; so does a line of that file that agrees by now.
``--update`` writes the file anew and keeps the reasons. What is in ``--out`` already is not run
again. All of it takes hours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "tests" / "op_db" / "known.txt"
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
SECONDS = 120  # of one operator in one dtype
FORMS, SAMPLES = 6, 3  # of each operator in each dtype; samples of each form
ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Results are uninitialised, random, or say where the tensor is.
LEFT_OUT = ("empty", "new_empty", "as_strided", "normal", "rand", "bernoulli", "multinomial")


class Applied(torch.nn.Module):
    """An operator with its arguments that are no tensors; called with its tensors.

    Floating-point results are scaled, so that there is something for the engine in any case.
    """

    def __init__(self, op: Any, spec: Any, rest: list[Any]) -> None:
        super().__init__()
        self.op, self.spec, self.rest = op, spec, rest
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the operator's results."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is torch.Tensor else leaf for leaf in self.rest]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return [
            leaf * self.scale
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            else leaf
            for leaf in tree_leaves(self.op(*args, **kwargs))
        ]


def forms_of(info: Any, dtype: torch.dtype) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Yield (structure, arguments that are no tensors, [tensors of a sample, …])."""
    forms: dict[str, tuple[Any, list[Any], list[Any]]] = {}
    for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        rest = [torch.Tensor if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        key = f"{spec} {rest} {[(t.dim(), t.dtype, t.layout) for t in tensors]}"
        if tensors and all(t.layout == torch.strided for t in tensors):
            forms.setdefault(key, (spec, rest, []))[2].append(tensors)
    # those whose extents change first
    best = sorted(forms.values(), key=lambda form: -min(len(form[2]), SAMPLES))
    yield from best[:FORMS]


def run(net: Any, tensors: list[torch.Tensor]) -> list[Any]:
    """Return results and gradients: None of what has none."""
    leaves = [
        t.detach().clone().requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors
    ]
    torch.manual_seed(0)
    results = tree_leaves(net(*leaves))
    differentiable = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if differentiable:
        weights = [
            torch.linspace(-1, 2, r.numel(), dtype=torch.float64).view(r.shape).to(r.dtype)
            for r in differentiable
        ]
        torch.autograd.backward(differentiable, weights)
    return [*results, *(t.grad for t in leaves)]


def differ(actual: Any, expected: Any, least: float) -> bool:
    """Whether two results are apart: in kind, dtype, shape, or by more than rounding."""
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return type(actual) is not type(expected) or actual != expected
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return True
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = actual.detach().to(wide), expected.detach().to(wide)
    inside = b.isfinite()
    size = max(1.0, float(b[inside].abs().max())) if inside.any() else 1.0
    within = max(ALLOWED[expected.dtype], least) * size if expected.dtype in ALLOWED else 0
    return not torch.allclose(a, b, rtol=0, atol=within, equal_nan=True)


def compare_sample(module: Any, net: Any, tensors: list[Any], dtype: torch.dtype) -> str:
    """Return "agrees", "refused: …", "raises" (as PyTorch does) or "differs: …"."""
    from steep.errors import Error, InternalError

    try:
        expected = run(module, tensors)
    except Exception as error:
        expected = [type(error)]
    try:
        actual = run(net, tensors)
    except InternalError as error:
        return f"differs: {error}"
    except Error as error:
        raises = isinstance(expected[0], type)
        return "raises" if raises else "refused: " + str(error).splitlines()[0]
    except Exception as error:
        actual = [type(error)]
    if len(actual) != len(expected):
        return f"differs: {str(actual[0])[:60]} for {str(expected[0])[:60]}"
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if differ(a, b, ALLOWED.get(dtype, 0)):
            what = "result" if i < len(actual) - len(tensors) else "gradient"
            return f"differs: {what} {i}: {str(a)[:60]} for {str(b)[:60]}"
    return "agrees"


def compare(info: Any, dtype: torch.dtype) -> str:
    """Return "engine", "parts", "PyTorch", "refused: …" or "differs: …" of one operator."""
    from steep import ORTModule

    ran = set()
    for spec, rest, samples in forms_of(info, dtype):
        torch._dynamo.reset()
        module = Applied(info.op, spec, rest)
        net = ORTModule(module)
        for k, tensors in enumerate(samples[:SAMPLES]):
            answer = compare_sample(module, net, tensors, dtype)
            if answer.startswith("differs"):
                where = f"call {k} of {[tuple(t.shape) for t in tensors]} {rest}"
                return f"differs: {where[:150]}: {answer.removeprefix('differs: ')}"
            if answer.startswith("refused"):
                return answer
        report = net.report()
        if any(graph.in_torch or graph.exporter == "PyTorch" for graph in report.graphs):
            ran.add("parts")
        elif report.graphs:
            ran.add("PyTorch" if report.breaks else "engine")
    return next(
        (answer for answer in ("parts", "engine", "PyTorch") if answer in ran), "no samples"
    )


def _stop(signal_number: int, frame: Any) -> None:
    raise TimeoutError


def key_of(job: tuple[str, str, str]) -> str:
    """Return what a line calls an operator in a dtype."""
    name, variant, dtype = job
    return f"{name}{'.' + variant if variant else ''} {dtype}"


def outcome(job: tuple[str, str, str]) -> tuple[str, str]:
    """Return an operator's name with its dtype, and what became of it."""
    name, variant, dtype = job
    from torch.testing._internal.common_methods_invocations import op_db

    key = key_of(job)
    info = next(i for i in op_db if (i.name, i.variant_test_name) == (name, variant))
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nothing:
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(nothing):
                return key, " ".join(compare(info, getattr(torch, dtype)).split())
    except TimeoutError:
        return key, f"slow: over {SECONDS} s"
    except Exception as error:
        return key, f"differs: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        signal.alarm(0)


def jobs_of(only: list[str], dtypes: list[str]) -> list[tuple[str, str, str]]:
    """Return (name, variant, dtype) of all that is to be run."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        (info.name, info.variant_test_name, dtype)
        for info in op_db
        for dtype in dtypes
        if getattr(torch, dtype) in info.supported_dtypes("cpu")
        and (not only or info.name in only)
        and not any(part in info.name for part in LEFT_OUT)
    ]


def known() -> dict[str, str]:
    """Return the reason for each known difference."""
    lines = KNOWN.read_text().splitlines() if KNOWN.exists() else []
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "op_db.json")
    parser.add_argument("--update", action="store_true", help="write the known differences anew")
    options = parser.parse_args()
    answers: dict[str, str] = json.loads(options.out.read_text()) if options.out.exists() else {}
    jobs = jobs_of(options.only, options.dtypes)
    keys = {key_of(job) for job in jobs}
    rest = [job for job in jobs if key_of(job) not in answers]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    expected = known()
    # a process for each few: what one leaves behind in PyTorch touches few others
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=20) as pool:
        bar = tqdm(pool.imap_unordered(outcome, rest), total=len(rest), unit="operator")
        for key, answer in bar:
            answers[key] = answer
            options.out.write_text(json.dumps(answers, indent=1, sort_keys=True))
            if answer.startswith("differs") and key not in expected:
                bar.write(f"{key}: {answer}", file=sys.stdout)
    answers = {key: answer for key, answer in answers.items() if key in keys}
    for answer, n in Counter(answer.split(":")[0] for answer in answers.values()).most_common():
        print(f"{n:6} {answer}")
    differing = {key: answer for key, answer in answers.items() if answer.startswith("differs")}
    if options.update:
        others = {key: why for key, why in expected.items() if key not in keys}
        lines = {**others, **{key: expected.get(key, answer) for key, answer in differing.items()}}
        head = "# What differs from PyTorch, and why: written by scripts/op_db.py --update.\n"
        KNOWN.parent.mkdir(exist_ok=True)
        KNOWN.write_text(head + "".join(f"{k}: {v}\n" for k, v in sorted(lines.items())))
        return 0
    stale = sorted(key for key in expected if key in answers and key not in differing)
    for key in stale:
        print(f"agrees by now, take it out of {KNOWN.relative_to(ROOT)}: {key}")
    return bool(stale or set(differing) - set(expected))


if __name__ == "__main__":
    sys.exit(main())

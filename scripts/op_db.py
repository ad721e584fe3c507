#!/usr/bin/env python3
"""Compares ORTModule with eager PyTorch over PyTorch's own operator database, dtype by dtype.

usage: scripts/op_db.py [--only NAME …] [--dtypes float64 …] [--jobs 2] [--update]
       [--minutes 30] [--out build/op_db.json]

Each operator of ``torch.testing._internal.common_methods_invocations.op_db`` is called with its
sample inputs, those of one form (the same arguments that are no tensors, the same ranks) one after
the other in one module, so that extents change between two calls: FORMS forms of SAMPLES samples.
Results, their dtypes, and the gradients of all floating-point inputs are compared; a result of 32
or 16 bits also agrees if it is as near to float64's as PyTorch's is. All forms
are first in one module; where anything is amiss there, each is alone in a module. What differs,
what is refused, what takes too long and what ends the process fails the run, unless
``tests/op_db/known.txt`` has it with a reason; so does a line of that file that agrees by now.
``--update`` writes the file anew, with the numbers of operators that were run, and keeps the
reasons. What is in ``--out`` already is not run again. All of it takes hours: ``--minutes`` runs
a part, and the next call goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "tests" / "op_db" / "known.txt"
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
SECONDS = 120  # of processors, for one operator in one dtype
SILENCE = 1800  # seconds after which no process is taken to answer any more
# Forms of each operator, samples of each form: most in float64, where no rounding hides a wrong
# formula; the others show other kernels, dtypes of results, and extents.
FORMS = dict.fromkeys(DTYPES, 3)
SAMPLES = dict.fromkeys(DTYPES, 2)
EACH = 120  # operators of one process: what one leaves behind in PyTorch touches few others
ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
AMISS = ("differs", "refused", "slow", "ended")
# Results are uninitialised, random, or say where the tensor is.
LEFT_OUT = ("empty", "new_empty", "as_strided", "normal", "rand", "bernoulli", "multinomial")

# (structure, arguments that are no tensors, [tensors of a sample, …])
Form = tuple[Any, list[Any], list[list[torch.Tensor]]]


class Applied(torch.nn.Module):
    """An operator, once for each form; called with the tensors of all.

    Floating-point results are scaled, and the scale is a result: there is something for the
    engine in any case. The calls are written out, which the tracer reads fastest; and PyTorch can
    go on after each.
    """

    def __init__(self, op: Any, forms: list[Form]) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        known = {"op": op, "scaled": scaled}
        tensors, lines = itertools.count(), []
        for spec, rest, _ in forms:
            names = [f"c{len(known) + i}" for i in range(len(rest))]
            known |= dict(zip(names, rest, strict=True))
            names = [
                f"t{next(tensors)}" if leaf is torch.Tensor else name
                for name, leaf in zip(names, rest, strict=True)
            ]
            args, kwargs = tree_unflatten(names, spec)
            call = ", ".join(map(written, args))
            call += "".join(f", {name}={written(value)}" for name, value in kwargs.items())
            lines.append(f"    results += scaled(op({call}), self.scale)\n")
        operands = ", ".join(f"t{i}" for i in range(next(tensors)))
        source = f"def forward(self, {operands}):\n    results = []\n{''.join(lines)}"
        exec(source + "    return [*results, self.scale * 2]\n", known)
        self.written_out = known["forward"]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the operator's results."""
        return self.written_out(self, *tensors)


def written(names: Any) -> str:
    """Return the source text of a structure of names."""
    if isinstance(names, dict):
        return "{" + ", ".join(f"{key!r}: {written(value)}" for key, value in names.items()) + "}"
    if isinstance(names, (list, tuple)):
        text = "".join(f"{written(value)}, " for value in names)
        return f"[{text}]" if isinstance(names, list) else f"({text})"
    return str(names)


def scaled(result: Any, scale: torch.Tensor) -> list[Any]:
    """Return the parts of a result as a list."""
    if isinstance(result, torch.Tensor):
        return [result * scale if result.is_floating_point() else result]
    if isinstance(result, (list, tuple)):
        return [part for each in result for part in scaled(each, scale)]
    return [result]


def forms_of(info: Any, dtype: torch.dtype) -> list[Form]:
    """Return forms, those first whose extents change."""
    forms: dict[str, Form] = {}
    for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        rest = [torch.Tensor if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        key = f"{spec} {rest} {[(t.dim(), t.dtype, t.layout) for t in tensors]}"
        if tensors and all(t.layout == torch.strided for t in tensors):
            forms.setdefault(key, (spec, rest, []))[2].append(tensors)
    name = str(dtype).removeprefix("torch.")
    best = sorted(forms.values(), key=lambda form: -min(len(form[2]), SAMPLES[name]))
    return [(*form[:2], form[2][: SAMPLES[name]]) for form in best[: FORMS[name]]]


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


def is_nearer(actual: Any, expected: Any, exact: Any, least: float) -> bool:
    """Whether a result of 32 or 16 bits is at least as near to that of float64 as PyTorch's is."""
    if any(not isinstance(t, torch.Tensor) for t in (actual, expected, exact)):
        return False
    if (actual.dtype, actual.shape, exact.shape) != (expected.dtype, *[expected.shape] * 2):
        return False
    if not actual.is_floating_point():
        return False
    exact = exact.detach().to(actual.dtype)  # beyond the type's range it is infinite
    a, b, c = (t.detach().double() for t in (actual, expected, exact))
    both = a.isfinite() & b.isfinite() & c.isfinite()
    if (~a.isfinite() & b.isfinite() & c.isfinite()).any() or (a.isnan() & ~b.isnan()).any():
        return False
    if not both.any():
        return True
    size = max(1.0, float(c[both].abs().max()))
    return bool((a - c)[both].abs().max() <= max((b - c)[both].abs().max(), least * size))


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
    exact: list[Any] = []
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if differ(a, b, ALLOWED.get(dtype, 0)):
            if dtype in (torch.float16, torch.bfloat16, torch.float32):
                wide = [t.double() if t.is_floating_point() else t for t in tensors]
                exact = exact or run(module, wide)
                if is_nearer(a, b, exact[i], ALLOWED[dtype]):
                    continue
            what = "result" if i < len(actual) - len(tensors) else "gradient"
            return f"differs: {what} {i}: {str(a)[:60]} for {str(b)[:60]}"
    return "agrees"


def compare_forms(info: Any, forms: list[Form], dtype: torch.dtype) -> tuple[str, str]:
    """Return where forms ran in one module, and what is amiss, if anything is."""
    from steep import ORTModule

    torch._dynamo.reset()
    module = Applied(info.op, forms)
    net, answer = ORTModule(module), ""
    for k in range(max(len(samples) for _, _, samples in forms)):
        tensors = [t for _, _, samples in forms for t in samples[min(k, len(samples) - 1)]]
        answer = compare_sample(module, net, tensors, dtype)
        if answer == "raises" and len(forms) > 1:
            break
        if answer.startswith(AMISS):
            kind, what = answer.split(": ", 1)
            rest = [rest for _, rest, _ in forms]
            answer = f"{kind}: call {k} of {[tuple(t.shape) for t in tensors]} {rest}"[:170]
            answer += f": {what}"
            break
    report = net.report()
    if any(graph.in_torch or graph.exporter == "PyTorch" for graph in report.graphs):
        where = "parts"
    else:
        where = "PyTorch" if report.breaks or not report.graphs else "engine"
    return where, "" if answer == "agrees" else answer


def compare(info: Any, dtype: torch.dtype) -> str:
    """Return "engine", "parts" or "PyTorch", or what is amiss, of each form one thing."""
    forms = forms_of(info, dtype)
    if not forms:
        return "no samples"
    answers = [compare_forms(info, forms, dtype)]
    if answers[0][1] and len(forms) > 1:
        answers = [compare_forms(info, [form], dtype) for form in forms]
    amiss = sorted(answer for _, answer in answers if answer.startswith(AMISS))
    ran = {where for where, _ in answers}
    return " | ".join(amiss) or next(p for p in ("parts", "engine", "PyTorch") if p in ran)


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
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
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
        signal.setitimer(signal.ITIMER_PROF, 0)


def _work(connection: Any, jobs: list[tuple[str, str, str]]) -> None:
    for job in jobs:
        start = time.process_time()
        key, answer = outcome(job)
        connection.send((key, answer, round(time.process_time() - start, 1)))


def outcomes(jobs: list[tuple[str, str, str]], processes: int) -> Iterator[tuple[str, str, float]]:
    """Yield (operator and dtype, what became of it, seconds), also of what ends its process."""
    context = multiprocessing.get_context("spawn")
    waiting = deque(jobs)
    running: dict[Any, tuple[Any, deque[tuple[str, str, str]]]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                batch = deque(waiting.popleft() for _ in range(min(EACH, len(waiting))))
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(there, list(batch)))
                process.start()
                there.close()
                running[here] = process, batch
            ready = multiprocessing.connection.wait(list(running), timeout=SILENCE)
            if not ready:  # within native code, where the alarm isn't heard
                for process, _ in running.values():
                    process.kill()
            for connection in ready:
                process, batch = running[connection]
                try:
                    yield connection.recv()
                    batch.popleft()
                except EOFError:
                    del running[connection]
                    process.join()
                    if batch:
                        yield key_of(batch.popleft()), f"ended: exit status {process.exitcode}", 0.0
                        waiting.extendleft(reversed(batch))
    finally:
        for process, _ in running.values():
            process.kill()


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
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--update", action="store_true", help="write the known differences anew")
    options = parser.parse_args()
    answers: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    jobs = jobs_of(options.only, options.dtypes)
    keys = {key_of(job) for job in jobs}
    rest = [job for job in jobs if key_of(job) not in answers]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    expected = known()
    start = time.monotonic()
    rest = rest if options.minutes else []
    bar = tqdm(outcomes(rest, options.jobs), total=len(rest), unit="operator")
    for key, answer, seconds in bar:
        answers[key] = [answer, seconds]
        options.out.write_text(json.dumps(answers, indent=1, sort_keys=True))
        if answer.startswith(AMISS) and key not in expected:
            bar.write(f"{key}: {answer}", file=sys.stdout)
        if time.monotonic() - start > 60 * options.minutes:
            break
    minutes = (time.monotonic() - start) / 60
    bar.close()
    done = sum(key_of(job) in answers for job in rest)
    print(f"{done} operators in {minutes:.0f} min, {options.jobs} at a time")
    ran = {key: seconds for key, (_, seconds) in answers.items()}
    answers = {key: answer for key, (answer, _) in answers.items() if key in keys}
    for answer, n in Counter(answer.split(":")[0] for answer in answers.values()).most_common():
        print(f"{n:6} {answer}")
    differing = {key: answer for key, answer in answers.items() if answer.startswith(AMISS)}
    if options.update:
        others = {key: why for key, why in expected.items() if key not in keys}
        lines = {**others, **{key: expected.get(key, answer) for key, answer in differing.items()}}
        of_dtype = Counter(key.rpartition(" ")[2] for key in ran)
        every = Counter(dtype for _, _, dtype in jobs_of([], list(DTYPES)))
        counts = ", ".join(f"{n} of {every[dtype]} in {dtype}" for dtype, n in of_dtype.items())
        head = (
            "# What differs from PyTorch, and why: written by scripts/op_db.py --update.\n"
            f"# Operators that were run: {counts}; {sum(ran.values()) / 60:.0f} CPU minutes.\n"
        )
        KNOWN.parent.mkdir(exist_ok=True)
        KNOWN.write_text(head + "".join(f"{k}: {v}\n" for k, v in sorted(lines.items())))
        return 0
    stale = sorted(key for key in expected if key in answers and key not in differing)
    for key in stale:
        print(f"agrees by now, take it out of {KNOWN.relative_to(ROOT)}: {key}")
    return bool(stale or set(differing) - set(expected))


if __name__ == "__main__":
    sys.exit(main())

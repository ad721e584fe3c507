"""Steep beside PyTorch: step time, ratio, time to the first step, memory, share of the limit.

Every contestant is a process of its own. They take turns, a few steps each, so that a machine that
speeds up or slows down does so for all; ratios are medians of the turns' ratios. The first steps of
a turn are not counted: memory that a process gave back before it had to wait, a virtual machine may
give to its host, and then the next touch is dearer than in training, which does not pause. "strong"
is PyTorch with malloc kept from giving memory back and the better of eager and torch.compile; both
use fused AdamW. The limit is the sum of the step's matrix products as plain oneDNN calls
(bench/matmul_limit.cc), measured in the same turns, in the same precision.

    python bench/run.py                     all works, fp32 and bf16
    python bench/run.py lm bert --turns 5   some works, a quicker look
    python bench/run.py bert --threads 1 --precision fp32

`make bench` also adds the tables to docs/benchmarks_log.md (--log).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import log
from report import Result, Row, plot, table
from small import ROWS, SMALL
from works import WORKS

HERE = Path(__file__).resolve().parent
AFTER_WAITING = 3  # steps that are not counted
SMALL_STEPS = 1000  # of a small work in a turn
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
STRONG = {"strong eager": "torch", "strong compiled": "torch-compile"}
# name → (runner of worker.py, environment)
RUNNERS: dict[str, tuple[str, dict[str, str]]] = {
    "ort-module": ("ort-module", {}),
    "loss-inside": ("loss-inside", {}),
    "trainer": ("trainer", {}),
    "session": ("session", {}),
    "default": ("torch", {}),
    **{name: (runner, KEEP_MEMORY) for name, runner in STRONG.items()},
    "scikit-learn": ("scikit", {}),
}
STEEP = ("ort-module", "loss-inside", "trainer", "session", "c++")
AVX2 = {
    "STEEP_MAX_ISA": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


class Contestant:
    """A worker process and the step times (seconds) that it reported, one list a turn."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.turns: list[list[float]] = []
        self.errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 (close() does)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=HERE,
            env={**os.environ, **environment},
        )
        self.first_step_s: float = self._answer()["first_step_s"]

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.errors.seek(0)
            # of a traceback, the error itself, without the lines that explain it
            lines = [line for line in self.errors.read().splitlines() if line[:1].strip()]
            raise RuntimeError(lines[-1] if lines else f"ended with status {status}")
        return json.loads(line)

    def ask(self, request: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self._answer()

    def turn(self, steps: int) -> None:
        self.ask(f"step {AFTER_WAITING}")
        self.turns.append(self.ask(f"step {steps}"))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self.errors.close()

    def medians(self) -> list[float]:
        return [statistics.median(t) for t in self.turns]

    def median_ms(self) -> float:
        return statistics.median(t for turn in self.turns for t in turn) * 1e3


def times_faster(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the turns' ratios of seconds."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K  {text}", end="", file=sys.stderr, flush=True)


def program(name: str) -> str | None:
    candidates = (p for p in (HERE.parent / "build").rglob(name) if p.is_file())
    return str(next(candidates, "")) or None


def limit_command(work: str, precision: str) -> list[str]:
    """Of the matmul-only limit; empty when its program is not built."""
    limit = program("matmul_limit")
    products = [f"{p.m},{p.n},{p.k},{p.batch},{p.count}" for p in WORKS[work].products]
    return [limit, precision, *products] if limit and products else []


def commands(work: str, args: argparse.Namespace, precision: str) -> dict[str, list[str]]:
    """Contestants of a work, and "limit"."""
    steep = ("ort-module", "loss-inside", "trainer") if work in WORKS else ("session",)
    names = [*steep, "default", *STRONG, *(["scikit-learn"] if work in SMALL else [])]
    if work in WORKS and not WORKS[work].loss_outside:
        names.remove("loss-inside")
    options = ["--precision", precision, "--threads", str(args.threads)]
    result = {
        n: [sys.executable, str(HERE / "worker.py"), work, RUNNERS[n][0], *options] for n in names
    }
    if work in SMALL and (step := program("session_step")):
        small = SMALL[work]
        model = args.out / f"{work}.onnx"
        model.write_bytes(small.model())
        result["c++"] = [step, str(model), small.loss, small.optimizer, str(ROWS)]
    if work in WORKS and (limit := limit_command(work, precision)):
        result["limit"] = limit
    return result


def measure(work: str, args: argparse.Namespace, precision: str) -> Row:
    title = WORKS[work].title if work in WORKS else SMALL[work].title
    row = Row(work, title, precision, args.threads, args.isa)
    shared = {"OMP_NUM_THREADS": str(args.threads)} | (AVX2 if args.isa == "avx2" else {})
    steps = args.steps if work in WORKS else SMALL_STEPS
    contestants: dict[str, Contestant] = {}
    try:
        for name, command in commands(work, args, precision).items():
            say(f"{work}, {name}: building, first step …")
            environment = RUNNERS[name][1] if name in RUNNERS else {}
            try:
                contestants[name] = Contestant(name, command, {**shared, **environment})
            except RuntimeError as error:
                row.failed[name] = str(error)
        for contestant in contestants.values():  # warm up
            contestant.ask(f"step {AFTER_WAITING}")
        for turn in range(args.turns):
            say(f"{work}: turn {turn + 1} of {args.turns}")
            for contestant in contestants.values():
                contestant.turn(steps)
        for name, c in contestants.items():
            if name == "limit":
                row.limit_ms = c.median_ms()
                continue
            peak = None if name == "c++" else float(c.ask("memory"))
            row.results[name] = Result(c.median_ms(), c.first_step_s, peak)
    finally:
        say("")
        for contestant in contestants.values():
            contestant.close()
    compare(row, contestants)
    return row


def compare(row: Row, contestants: dict[str, Contestant]) -> None:
    """Ratios of Steep's contestants to PyTorch's; of the strong ones the fastest stays."""
    strong = [n for n in STRONG if n in row.results]
    rivals = {"default": contestants.get("default")}
    if strong:
        best = min(strong, key=lambda n: row.results[n].step_ms)
        rivals["strong"] = contestants[best]
        row.results["strong"] = row.results[best]
        row.strong = best.removeprefix("strong ")
    for name in STEEP:
        if name not in row.results:
            continue
        ours = contestants[name].medians()
        for rival, other in rivals.items():
            if other is not None:
                row.results[name].ratio[rival] = times_faster(ours, other.medians())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "works", nargs="*", default=[*WORKS, *SMALL], help=", ".join([*WORKS, *SMALL])
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps of each contestant in a turn")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"], metavar="fp32|bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--isa", choices=["avx2"], help="switch wider instructions off, for all contestants"
    )
    parser.add_argument(
        "--log", type=Path, help="page to which the tables are added, with date and commit"
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "runs/bench")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.out = args.out.resolve()
    parts = [f"{args.threads}-threads"] if args.threads != 2 else []
    parts += [args.isa] if args.isa else []
    now = log.conditions(args.threads, args.isa)
    tables, measured = [], {}
    for precision in args.precision:
        name = "-".join(["bench", *([precision] if precision != "fp32" else []), *parts])
        rows: list[Row] = []
        for work in args.works:
            if precision != "fp32" and work in SMALL:
                continue
            rows.append(measure(work, args, precision))
            print(table(rows[-1:], head=len(rows) == 1), flush=True)
            text = json.dumps([dataclasses.asdict(r) for r in rows], indent=2)
            (args.out / f"{name}.json").write_text(text + "\n")
        plot(rows, args.out / f"{name}.png")
        measured[precision] = rows
        tables.append(f"{precision}, written to {args.out / name}.json and .png\n\n{table(rows)}")
    print("\n" + "\n\n".join(tables))
    if args.log:
        log.add(args.log, log.section(now, measured))


if __name__ == "__main__":
    main()

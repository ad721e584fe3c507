"""Steep beside PyTorch: step time, ratio, time to the first step, memory, share of the limit.

Every contestant is a process of its own. They take turns, a few steps each, so that a machine that
speeds up or slows down does so for all; ratios are medians of the turns' ratios. The first steps of
a turn are not counted: memory that a process gave back before it had to wait, a virtual machine may
give to its host, and then the next touch is dearer than in training, which does not pause. "strong"
is PyTorch with malloc kept from giving memory back and the better of eager and torch.compile; both
use fused AdamW. The limit is the sum of the step's matrix products as plain oneDNN calls
(bench/matmul_limit.cc), measured in the same turns.

    python bench/run.py                     all works
    python bench/run.py lm bert --turns 5   some works, a quicker look
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from works import WORKS, Work

HERE = Path(__file__).resolve().parent
AFTER_WAITING = 3  # steps that are not counted
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
RUNNERS: dict[str, tuple[str, dict[str, str]]] = {
    "steep": ("steep", {}),
    "default": ("torch", {}),
    "strong eager": ("torch", KEEP_MEMORY),
    "strong compiled": ("torch-compile", KEEP_MEMORY),
}


class Contestant:
    """A worker process and the step times (seconds) that it reported, one list a turn."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.turns: list[list[float]] = []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=HERE,
            env={**os.environ, **environment},
        )
        self.first: dict[str, float] = self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended early with status {self.process.wait()}")
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

    def medians(self) -> list[float]:
        return [statistics.median(t) for t in self.turns]

    def median_ms(self) -> float:
        return statistics.median(t for turn in self.turns for t in turn) * 1e3


@dataclass
class Row:
    """Figures of one work. Times in milliseconds unless named otherwise; memory in MiB."""

    work: str
    title: str
    step_ms: dict[str, float]
    ratio: dict[str, float]
    first_step_s: dict[str, float]
    memory_mib: dict[str, float]
    limit_ms: float | None
    failed: dict[str, str]


def limit_command(work: Work, precision: str) -> list[str] | None:
    program = next((p for p in (HERE.parent / "build").rglob("matmul_limit") if p.is_file()), None)
    if program is None or not work.products:
        return None
    return [
        str(program),
        precision,
        *(f"{p.m},{p.n},{p.k},{p.batch},{p.count}" for p in work.products),
    ]


def measure(name: str, turns: int, steps: int, precision: str) -> Row:
    contestants: dict[str, Contestant] = {}
    failed: dict[str, str] = {}
    names = list(RUNNERS) if name != "linear" else ["steep", "default"]
    for runner in names:
        kind, environment = RUNNERS[runner]
        print(f"  {runner}: building, first step …", end="\r", file=sys.stderr, flush=True)
        try:
            contestants[runner] = Contestant(
                runner,
                [sys.executable, str(HERE / "worker.py"), name, kind, "--precision", precision],
                environment,
            )
        except RuntimeError as error:
            failed[runner] = str(error)
    command = limit_command(WORKS[name], precision) if name in WORKS else None
    if command:
        contestants["limit"] = Contestant("limit", command, {})
    try:
        for contestant in contestants.values():  # warm up
            contestant.ask(f"step {min(steps, 3)}")
        for turn in range(turns):
            print(
                f"  {name}: turn {turn + 1} of {turns}            ",
                end="\r",
                file=sys.stderr,
                flush=True,
            )
            for contestant in contestants.values():
                contestant.turn(steps)
        memory = {n: float(c.ask("memory")) for n, c in contestants.items() if n != "limit"}
    finally:
        for contestant in contestants.values():
            contestant.close()
    strong = min(
        (c for n, c in contestants.items() if n.startswith("strong")),
        key=Contestant.median_ms,
        default=None,
    )
    step_ms = {n: c.median_ms() for n, c in contestants.items() if n != "limit"}
    ratio: dict[str, float] = {}
    if "steep" in contestants:
        ours = contestants["steep"].medians()
        rivals = {"default": contestants.get("default"), "strong": strong}
        for rival, other in rivals.items():
            if other is not None:
                ratio[rival] = statistics.median(
                    b / a for a, b in zip(ours, other.medians(), strict=True)
                )
    if strong is not None:
        step_ms["strong"] = strong.median_ms()
        memory["strong"] = memory[strong.name]
    return Row(
        work=name,
        title=WORKS[name].title if name in WORKS else "linear regression, 10 features, 32 rows",
        step_ms=step_ms,
        ratio=ratio,
        first_step_s={n: c.first["first_step_s"] for n, c in contestants.items() if n != "limit"},
        memory_mib=memory,
        limit_ms=contestants["limit"].median_ms() if "limit" in contestants else None,
        failed=failed,
    )


def table(rows: list[Row]) -> str:
    head = (
        "| work | Steep ms | PyTorch default ms | PyTorch strong ms | vs default | vs strong "
        "| limit ms | share of limit | first step s (Steep / PyTorch) "
        "| peak MiB (Steep / default / strong) |\n" + "|---" * 10 + "|"
    )
    lines = [head]

    def cell(values: dict[str, float], key: str, form: str = "{:.0f}") -> str:
        return form.format(values[key]) if key in values else "–"

    for r in rows:
        step = "{:.4f}" if r.work == "linear" else "{:.0f}"
        share = r.limit_ms / r.step_ms["steep"] if r.limit_ms and "steep" in r.step_ms else None
        first = [cell(r.first_step_s, n, "{:.1f}") for n in ("steep", "default")]
        memory = [cell(r.memory_mib, n) for n in ("steep", "default", "strong")]
        cells = [
            r.title,
            *(cell(r.step_ms, n, step) for n in ("steep", "default", "strong")),
            *(cell(r.ratio, n, "{:.2f}×") for n in ("default", "strong")),
            f"{r.limit_ms:.0f}" if r.limit_ms else "–",
            f"{share:.0%}" if share else "–",
            " / ".join(first),
            " / ".join(memory),
        ]
        lines.append("| " + " | ".join(cells) + " |")
        lines.extend(f"  {name} failed: {why}" for name, why in r.failed.items())
    return "\n".join(lines)


def plot(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in rows if r.work != "linear" and "steep" in r.step_ms]
    if not rows:
        return
    bars = [
        ("default", "PyTorch, default", "#b8bcc4"),
        ("strong", "PyTorch, strong", "#7d8594"),
        ("steep", "Steep", "#1f77b4"),
    ]
    figure, (time_axes, memory_axes) = plt.subplots(
        1, 2, figsize=(11, 1.6 + 1.1 * len(rows)), sharey=True
    )
    for axes, what, unit in (
        (time_axes, "step_ms", "ms a step (median)"),
        (memory_axes, "memory_mib", "peak MiB"),
    ):
        for i, row in enumerate(rows):
            for k, (key, label, colour) in enumerate(bars):
                value = getattr(row, what).get(key)
                if value is None:
                    continue
                axes.barh(
                    i + (k - 1) * 0.27, value, 0.25, color=colour, label=label if i == 0 else None
                )
                axes.text(value, i + (k - 1) * 0.27, f" {value:.0f}", va="center", fontsize=8)
            if what == "step_ms" and row.limit_ms:
                axes.plot(
                    [row.limit_ms] * 2,
                    [i - 0.42, i + 0.42],
                    "k--",
                    lw=1,
                    label="matmul only" if i == 0 else None,
                )
        axes.set_xlabel(unit)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    time_axes.set_yticks(range(len(rows)), [r.title for r in rows])
    time_axes.invert_yaxis()
    time_axes.legend(frameon=False, fontsize=8)
    figure.suptitle("One training step on CPU, AdamW, every parameter trained", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "works", nargs="*", default=[*WORKS, "linear"], help="lm, bert, gpt2, linear"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps of each contestant in a turn")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    rows = []
    for name in args.works:
        steps = 2000 if name == "linear" else args.steps
        rows.append(measure(name, args.turns, steps, args.precision))
        print(table(rows[-1:]), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "bench.json").write_text(json.dumps([vars(r) for r in rows], indent=2) + "\n")
    plot(rows, args.out / "bench.png")
    print("\n" + table(rows) + f"\n\nwritten: {args.out / 'bench.json'}, {args.out / 'bench.png'}")


if __name__ == "__main__":
    main()

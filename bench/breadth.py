"""Many models that Steep was not tuned on: a step of training beside PyTorch's, by turns.

    python bench/breadth.py
    python bench/breadth.py mixtral lstm --turns 20 --eager

Each model is trained in one process by three contestants, that take one step each in turn: eager
PyTorch and `torch.compile`, both with `malloc` kept from giving memory back, and ORTModule. All use
AdamW with `fused=True`, on new data in each step. Columns: medians in milliseconds, how many times
faster ORTModule is than the better one of PyTorch's (the median of the ratios of the turns), and
the first step in seconds. The last line has the geometric mean of the ratios.

With `--memory`, the peak of the resident memory in MiB instead, of a process that takes ten steps:
eager PyTorch as it comes, and ORTModule.
"""

from __future__ import annotations

import argparse
import copy
import math
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import torch
from breadth_models import MODELS, Made
from run import say
from turns import keep_memory

import steep

Step = Callable[[], None]


def stepping(run: Callable[..., torch.Tensor], module: torch.nn.Module, work: Made) -> Step:
    """Return what makes one step of training; a seed of its own gives all the same data."""
    optimizer = torch.optim.AdamW(
        [p for p in module.parameters() if p.requires_grad], lr=1e-4, fused=True
    )
    data = torch.Generator().manual_seed(1)

    def step() -> None:
        optimizer.zero_grad()
        run(*work.batch(data)).backward()
        optimizer.step()

    return step


def contestants(work: Made, eager: bool) -> dict[str, Step]:
    """Return the steps by name; every contestant has a copy of the model."""
    wraps: dict[str, Callable[[torch.nn.Module], Callable[..., torch.Tensor]]] = {
        "eager": lambda module: module,
        "compiled": lambda module: torch.compile(module, dynamic=False),
        "steep": steep.ORTModule,
    }
    if eager:
        del wraps["compiled"]
    steps = {}
    for name, wrap in wraps.items():
        module = copy.deepcopy(work.module)
        steps[name] = stepping(wrap(module), module, work)
    return steps


def measure(name: str, turns: int, eager: bool) -> float:
    """Print the row of a model; return how many times faster ORTModule is."""
    torch.manual_seed(0)
    steps = contestants(MODELS[name](), eager)
    first, failed = {}, {}
    for runner, step in list(steps.items()):
        say(f"{name}, {runner}: the first step …")
        start = time.perf_counter()
        try:
            step()
        except Exception as e:
            if runner != "compiled":
                raise
            failed[runner] = type(e).__name__
            del steps[runner]
        first[runner] = time.perf_counter() - start
    times: dict[str, list[float]] = {runner: [] for runner in steps}
    for turn in range(turns + 3):
        say(f"{name}: turn {turn + 1} of {turns + 3}")
        for runner, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= 3:
                times[runner].append(time.perf_counter() - start)
    say("")
    medians = {runner: statistics.median(durations) for runner, durations in times.items()}
    best = min((r for r in medians if r != "steep"), key=lambda r: medians[r])
    ratio = statistics.median(
        theirs / ours for theirs, ours in zip(times[best], times["steep"], strict=True)
    )
    cells = [name]
    cells += [
        f"{1e3 * medians[r]:.1f}" if r in medians else failed.get(r, "-")
        for r in ("eager", "compiled", "steep")
    ]
    cells += [f"{ratio:.2f}", *(f"{first.get(r, math.nan):.1f}" for r in ("compiled", "steep"))]
    print(f"| {' | '.join(cells)} |", flush=True)
    return ratio


def peak(name: str, runner: str) -> None:
    """Take ten steps; print the peak of this process's resident memory in MiB."""
    torch.manual_seed(0)
    work = MODELS[name]()
    run = work.module if runner == "eager" else steep.ORTModule(work.module)
    step = stepping(run, work.module, work)
    for _ in range(10):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)


def compare_memory(names: list[str]) -> None:
    """Print the table of peaks, and the geometric mean of the ratios."""
    print("| model | eager | Steep | ratio |\n|---|---|---|---|")
    ratios = []
    for name in names:
        peaks = []
        for runner in ("eager", "steep"):
            say(f"{name}, {runner}: ten steps …")
            command = [sys.executable, __file__, name, "--child", runner]
            process = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(int(process.stdout.split()[-1]))
        say("")
        ratios.append(peaks[1] / peaks[0])
        print(f"| {name} | {peaks[0]} | {peaks[1]} | {ratios[-1]:.2f} |", flush=True)
    print(f"geometric mean of {len(ratios)} ratios: {statistics.geometric_mean(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--eager", action="store_true", help="leave torch.compile out")
    parser.add_argument("--memory", action="store_true", help="compare peaks of memory")
    parser.add_argument("--child", choices=("eager", "steep"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.models or [*MODELS]
    if unknown := set(names) - set(MODELS):
        parser.error(
            f"no model is called {' or '.join(sorted(unknown))}; there are {', '.join(MODELS)}"
        )
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    if args.child:
        return peak(names[0], args.child)
    if args.memory:
        return compare_memory(names)
    keep_memory()
    print("| model | eager | compiled | Steep | faster | first: compiled | first: Steep |")
    print("|---|---|---|---|---|---|---|")
    ratios = [measure(name, args.turns, args.eager) for name in names]
    print(f"geometric mean of {len(ratios)} ratios: {statistics.geometric_mean(ratios):.2f}")
    return None


if __name__ == "__main__":
    main()

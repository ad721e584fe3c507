"""One update of BERT's 200 parameters: `FusedAdam` of `steep.compat` beside PyTorch's fused AdamW.

    python bench/fused_adam.py

Each updates 12 layers of 768 (110 million numbers) in a process of its own, two of each, which take
turns: in one process what is made first is slower by some percent, by where its memory lies, and so
may one process be than the next. The table gives the median of the turns' ratios. Two threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
from run import Contestant, say, times_faster

OURS, THEIRS = "FusedAdam", "AdamW(fused=True)"
THREADS = 2


def optimizer_of(name: str) -> torch.optim.Optimizer:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    parameters = list(BertModel(BertConfig()).parameters())
    for p in parameters:
        p.grad = torch.randn_like(p)
    if name == THEIRS:
        return torch.optim.AdamW(parameters, 1e-3, fused=True)
    from steep.compat.optim.fused_adam import FusedAdam

    return FusedAdam(parameters, 1e-3)


def seconds(optimizer: torch.optim.Optimizer) -> float:
    """Of one step."""
    start = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - start


def work_alone(name: str) -> None:
    """Speak the protocol of bench/worker.py: `step N` is N steps."""
    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    optimizer = optimizer_of(name)
    print(json.dumps({"first_step_s": seconds(optimizer)}), file=answers, flush=True)
    for line in sys.stdin:
        times = [seconds(optimizer) for _ in range(int(line.split()[1]))]
        print(json.dumps(times), file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8, help="of each in a turn")
    parser.add_argument("--child", choices=(OURS, THEIRS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return work_alone(args.child)
    here = [sys.executable, str(Path(__file__).resolve())]
    contestants: list[Contestant] = []
    try:
        for name in (OURS, THEIRS, THEIRS, OURS):
            say(f"{name}: the first step …")
            contestants.append(Contestant(name, [*here, "--child", name], {}))
        for turn in range(args.turns):
            say(f"turn {turn + 1} of {args.turns}")
            for contestant in contestants:
                contestant.turn(args.steps)
    finally:
        say("")
        for contestant in contestants:
            contestant.close()
    durations = {
        name: [sum(both) / 2 for both in zip(*(c.medians() for c in pair), strict=True)]
        for name in (OURS, THEIRS)
        for pair in [[c for c in contestants if c.name == name]]
    }
    print("| 199 parameters | ms a step |\n|---|---|")
    for name, times in durations.items():
        print(f"| {name} | {statistics.median(times) * 1e3:.1f} |")
    print(f"\nFusedAdam is {times_faster(durations[OURS], durations[THEIRS]):.2f} times as fast.")
    return None


if __name__ == "__main__":
    main()

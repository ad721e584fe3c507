"""One AdamW update of 41 million numbers, with moments of float32, bfloat16 and int8.

    python bench/state_precision.py

Each precision runs in a process of its own, two of each, which take turns (as bench/fused_adam.py
says, where memory lies decides some percent). Only updates are timed: gradients are given. The
table gives the median of the turns' ratios to float32, and the bytes of moments by parameter. Two
threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from run import Contestant, say

PRECISIONS = ("float32", "bfloat16", "int8")
THREADS = 2
LAYERS, WIDTH, WORDS = 8, 512, 30522


def parameters() -> dict[str, torch.Tensor]:
    """Of a language model: words, and layers of attention and two products, with biases."""
    shapes = {"words": (WORDS, WIDTH)}
    for i in range(LAYERS):
        shapes |= {f"{i}/{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
        shapes |= {f"{i}/up": (WIDTH, 4 * WIDTH), f"{i}/down": (4 * WIDTH, WIDTH)}
        shapes |= {f"{i}/bias": (4 * WIDTH,), f"{i}/scale": (WIDTH,), f"{i}/shift": (WIDTH,)}
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def work_alone(precision: str) -> None:
    """Speak the protocol of bench/worker.py: `step N` is N steps; and `bytes`, of moments."""
    from steep import _steep
    from steep.compat.optim.tensor_update import TensorUpdate

    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(THREADS)
    options = _steep.OptimizerOptions()
    options.kind, options.state_precision = "adamw", precision
    own = parameters()
    update = TensorUpdate([(own, options)])
    gradients = [torch.randn_like(p) for p in own.values()]

    def seconds() -> float:
        start = time.perf_counter()
        update.step(gradients)
        return time.perf_counter() - start

    plan = update.session.plan(*gradients)
    bytes_each = plan.optimizer_bytes / sum(p.numel() for p in own.values())
    print(json.dumps({"first_step_s": seconds()}), file=answers, flush=True)
    for line in sys.stdin:
        name, *count = line.split()
        answer = bytes_each if name == "bytes" else [seconds() for _ in range(int(count[0]))]
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=6, help="of each in a turn")
    parser.add_argument("--child", choices=PRECISIONS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return work_alone(args.child)
    here = [sys.executable, str(Path(__file__).resolve())]
    contestants: list[Contestant] = []
    try:
        for name in (*PRECISIONS, *reversed(PRECISIONS)):
            say(f"{name}: the first step …")
            contestants.append(Contestant(name, [*here, "--child", name], {}))
        for turn in range(args.turns):
            say(f"turn {turn + 1} of {args.turns}")
            for contestant in contestants:
                contestant.turn(args.steps)
        kept = {contestant.name: contestant.ask("bytes") for contestant in contestants}
    finally:
        say("")
        for contestant in contestants:
            contestant.close()
    durations = {
        name: [sum(both) / 2 for both in zip(*(c.medians() for c in pair), strict=True)]
        for name in PRECISIONS
        for pair in [[c for c in contestants if c.name == name]]
    }
    print("| moments | ms a step | times float32 | bytes a parameter |\n|---|---|---|---|")
    for name, times in durations.items():
        ratio = statistics.median(a / b for a, b in zip(times, durations["float32"], strict=True))
        ms = statistics.median(times) * 1e3
        print(f"| {name} | {ms:.1f} | {ratio:.2f} | {kept[name]:.2f} |")
    return None


if __name__ == "__main__":
    main()

"""GPT-2 of 124 million weights within memory limits: peak memory and time of a step.

    python bench/budgets.py
    python bench/budgets.py --limits 2000MiB least --states float32 --turns 5

One row of 1,024 tokens, dropout 0.1, AdamW, float32. PyTorch is eager, as it comes. Steep is the
trainer, without a limit and with each of `--limits`, and with moments of each of `--states`. Each
contestant is a process of its own; all take a step in turn. The peak is the resident size of the
process, all libraries included. Two threads.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run import Contestant, say

THREADS, TOKENS, RATE = 2, 1024, 1e-4
PYTORCH = "PyTorch"


def step_of(limit: str, states: str) -> Callable[[], object]:
    """Return a step of training; `limit`: PyTorch's name, "none", or a memory limit."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).train()
    tokens = torch.randint(0, model.config.vocab_size, (1, TOKENS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    if limit == PYTORCH:

        def step() -> None:
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()

        return step
    import steep

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:
            return self.model(input_ids=ids, labels=labels).loss

    options = {} if limit == "none" else {"memory_limit": limit}
    trainer = steep.trainer(Loss(), None, optimizer, state_precision=states, **options)
    return lambda: trainer.step(tokens, tokens)


def work_alone(limit: str, states: str) -> None:
    """Speak the protocol of bench/worker.py: `step N`, and `memory`, in MiB."""
    answers, sys.stdout = sys.stdout, sys.stderr
    step = step_of(limit, states)

    def seconds() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    print(json.dumps({"first_step_s": seconds()}), file=answers, flush=True)
    for line in sys.stdin:
        name, *count = line.split()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        answer = peak if name == "memory" else [seconds() for _ in range(int(count[0]))]
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limits", nargs="*", default=["1850MiB", "least"])
    parser.add_argument("--states", nargs="*", default=["float32", "int8"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return work_alone(*args.child)
    cases = [(PYTORCH, "float32")]
    cases += [(limit, states) for states in args.states for limit in ("none", *args.limits)]
    contestants: list[Contestant] = []
    try:
        for limit, states in cases:
            say(f"{limit}, {states}: the first step …")
            command = [sys.executable, str(Path(__file__).resolve()), "--child", limit, states]
            contestants.append(Contestant(f"{limit} | {states}", command, {}))
        for turn in range(args.turns):
            say(f"turn {turn + 1} of {args.turns}")
            for contestant in contestants:
                contestant.turn(1)
        peaks = [contestant.ask("memory") for contestant in contestants]
    finally:
        say("")
        for contestant in contestants:
            contestant.close()
    print("| memory limit | moments | ms a step | times no limit | peak MiB | of PyTorch's |")
    print("|---|---|---|---|---|---|")
    free = contestants[1].medians()
    for contestant, peak in zip(contestants, peaks, strict=True):
        times = contestant.medians()
        ratio = statistics.median(a / b for a, b in zip(times, free, strict=True))
        ms = statistics.median(times) * 1e3
        cells = [contestant.name, f"{ms:.0f}", f"{ratio:.2f}", str(peak), f"{peak / peaks[0]:.2f}"]
        print(f"| {' | '.join(cells)} |")
    return None


if __name__ == "__main__":
    main()

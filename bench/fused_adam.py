"""One update of BERT's 200 parameters: `FusedAdam` of `steep.compat` beside PyTorch's fused AdamW.

    python bench/fused_adam.py

Both update 12 layers of 768 (110 million numbers) in one process, in turn; the table gives the
median of the turns' ratios. Two threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import torch
from run import times_faster

THREADS = 2


def seconds(optimizer: torch.optim.Optimizer, steps: int) -> float:
    """Of one step."""
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    return (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="of each in a turn")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)

    from transformers import BertConfig, BertModel

    from steep.compat.fused_adam import FusedAdam

    optimizers: dict[str, torch.optim.Optimizer] = {}
    for name in ("FusedAdam", "AdamW(fused=True)"):
        torch.manual_seed(0)
        parameters = list(BertModel(BertConfig()).parameters())
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizers[name] = (
            FusedAdam(parameters, 1e-3)
            if name == "FusedAdam"
            else torch.optim.AdamW(parameters, 1e-3, fused=True)
        )
        optimizers[name].step()
    found: dict[str, list[float]] = {name: [] for name in optimizers}
    for _ in range(args.turns):
        for name, optimizer in optimizers.items():
            found[name].append(seconds(optimizer, args.steps))
    ours, theirs = found.values()
    print(f"| {len(parameters)} parameters | ms a step |\n|---|---|")
    for name, times in found.items():
        print(f"| {name} | {statistics.median(times) * 1e3:.1f} |")
    print(f"\nFusedAdam is {times_faster(ours, theirs):.2f} times as fast.")


if __name__ == "__main__":
    main()

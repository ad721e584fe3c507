"""What a call costs that hardly computes: microseconds of forward and backward together.

    python bench/calls.py
    python bench/calls.py --rounds 60

Two modules, batch of 4 rows of 8 numbers: an MLP (Linear, ReLU, Linear of 8 units) and one of 300
submodules (100 times Linear, Tanh, Identity). Each runs in PyTorch, under
`torch.compile(backend="aot_eager")` and under ORTModule, in one process and in turn: a round is 200
calls of each for the MLP, 10 for the 300. The table gives each one's best and median round. One
thread, since nothing here is worth a second.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

UNITS = 8
ROWS = 4
CALLS = {"MLP of 8 units": 200, "300 submodules": 10}


def modules() -> dict[str, Callable[[], nn.Module]]:
    """What builds each module; the same weights each time."""

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS))

    def deep() -> nn.Module:
        block = (lambda: nn.Linear(UNITS, UNITS), nn.Tanh, nn.Identity)
        return nn.Sequential(*(make() for _ in range(100) for make in block))

    return dict(zip(CALLS, (mlp, deep), strict=True))


def runners() -> dict[str, Callable[[nn.Module], Callable[[torch.Tensor], torch.Tensor]]]:
    import steep

    return {
        "eager": lambda module: module,
        "aot_eager": lambda module: torch.compile(module, backend="aot_eager"),
        "ORTModule": steep.ORTModule,
    }


def microseconds(call: Callable[[torch.Tensor], torch.Tensor], calls: int) -> float:
    """Of one call, forward and backward."""
    x = torch.ones(ROWS, UNITS)
    start = time.perf_counter()
    for _ in range(calls):
        call(x).sum().backward()
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print("| module | runs in | best µs | median µs |\n|---|---|---|---|")
    for name, build in modules().items():
        calls = {}
        for runner, wrap in runners().items():
            torch.manual_seed(0)
            calls[runner] = wrap(build())
        durations: dict[str, list[float]] = {runner: [] for runner in calls}
        for call in calls.values():
            microseconds(call, CALLS[name])
        for _, (runner, call) in itertools.product(range(args.rounds), calls.items()):
            durations[runner].append(microseconds(call, CALLS[name]))
        for runner, times in durations.items():
            print(f"| {name} | {runner} | {min(times):.0f} | {statistics.median(times):.0f} |")


if __name__ == "__main__":
    main()

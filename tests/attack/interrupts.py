"""Ctrl-C at any moment of a capture, a forward and a backward pass, and of a trainer's steps.

    python tests/attack/interrupts.py [--cases 300] [--seed 0]

A timer raises SIGINT after a random time. KeyboardInterrupt must arrive, PyTorch's settings must be
what they were, and the same module must then give the numbers of one that was never interrupted.
Each case starts with Dynamo reset and without the cache of graphs. Prints a line ATTACK.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["STEEP_CACHE"] = "off"

import torch
from torch import nn
from tqdm import tqdm

import steep

X = torch.linspace(-1, 1, 32).view(4, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x))
        if y.sum() > 1e9:  # decided on values: two graphs
            return y
        return self.second(torch.linalg.matrix_exp(y.mT @ y / 100).mean(0))


def settings() -> dict[str, Any]:
    """What a capture may change for a while, by name."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    graph_modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return {
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "modes": len(graph_modes),
        "autocast": torch.is_autocast_enabled("cpu"),
        "hooks": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "dynamo": {k: repr(v) for k, v in dynamo.get_config_copy().items()},
        "functorch": {k: repr(v) for k, v in functorch.get_config_copy().items()},
        "functions": {
            f"{module.__name__}.{name}": id(value)
            for module in (torch, torch.nn.functional, torch.Tensor, torch.autograd, torch.optim)
            for name, value in vars(module).items()
            if callable(value) and not name.startswith("__")
        },
    }


def numbers(net: nn.Module) -> list[torch.Tensor]:
    net.zero_grad()
    y = net(X)
    y.square().sum().backward()
    return [y.detach().clone(), *(p.grad.clone() for p in net.parameters())]


def attack(delay: float, expected: list[torch.Tensor]) -> str:
    """Interrupt after a delay, then go on; return what a finding is."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = steep.ORTModule(Net())
    before = settings()
    signal.setitimer(signal.ITIMER_REAL, delay)
    try:
        numbers(net)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        return f"{type(error).__name__} for KeyboardInterrupt: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    after = settings()
    for name, value in before.items():
        if after[name] != value:
            changed = (
                sorted(k for k in value if value[k] != after[name].get(k))
                if isinstance(value, dict)
                else (value, after[name])
            )
            return f"left behind: {name}: {changed}"
    try:
        found = numbers(net)
    except Exception as error:
        return f"the next call: {type(error).__name__}: {error}"
    if not all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, expected, strict=True)
    ):
        return "the next call gives other numbers"
    return ""


def seconds_of(function: Callable[[], Any]) -> float:
    begin = time.monotonic()
    function()
    return time.monotonic() - begin


def main() -> int:
    """Interrupt as often as the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    torch.manual_seed(0)
    expected = numbers(Net())
    net = steep.ORTModule(Net())
    numbers(net)
    torch._dynamo.reset()
    longest = seconds_of(lambda: numbers(steep.ORTModule(Net())))
    begin, findings = time.monotonic(), 0
    for case in (bar := tqdm(range(options.cases), unit="interrupt")):
        said = attack(rng.uniform(0.001, longest), expected)
        if said:
            findings += 1
            bar.write(f"case {case}: {' '.join(said.split())[:300]}", file=sys.stdout)
    seconds = time.monotonic() - begin
    print(f"ATTACK interrupts {options.cases} {findings} {seconds:.1f}")
    return findings > 0


if __name__ == "__main__":
    sys.exit(main())

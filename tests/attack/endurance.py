"""Memory over many modules and many steps: it must not grow.

    python tests/attack/endurance.py [--modules 200] [--steps 20000]

Modules of one class and of classes of their own, each captured, trained for two steps, and dropped;
steps of a session, of a trainer and of a module. Resident memory at the end may be 3 % above what
it was after a tenth of the way, or, for modules, whose guards PyTorch keeps, 10 %. Prints lines
ATTACK.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable

os.environ["STEEP_CACHE"] = "off"

import numpy as np
import onnx.parser
import torch
from torch import nn
from tqdm import tqdm

import steep

X = torch.linspace(-1, 1, 32).view(4, 8)


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def resident() -> int:
    """Bytes in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def one_class(i: int) -> None:
    net = steep.ORTModule(Net(8 + i % 40))
    for _ in range(2):
        net(X).sum().backward()


def own_classes(i: int) -> None:
    kind = type(f"Net{i}", (Net,), {"forward": lambda self, x: Net.forward(self, x) * (i + 1)})
    net = steep.ORTModule(kind())
    for _ in range(2):
        net(X).sum().backward()


def of_module() -> Callable[[int], None]:
    net = steep.ORTModule(Net())
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def step(i: int) -> None:
        optimizer.zero_grad()
        net(X).square().mean().backward()
        optimizer.step()

    return step


def of_trainer() -> Callable[[int], None]:
    net = Net()
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.AdamW(net.parameters()))
    y = torch.zeros(4, 2)
    return lambda i: trainer.step(X, y)


def of_session() -> Callable[[int], None]:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        line (float[n, 3] x) => (float[n, 1] y) <float[3, 1] w = {1.0, 2.0, 3.0}> {
            y = MatMul (x, w)
        }""")
    session = steep.TrainingSession(model, loss="mse")
    x, y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    return lambda i: session.step(x, y)


def measure(name: str, count: int, act: Callable[[int], object], share: float = 0.03) -> int:
    """Act so often; return the number of findings."""
    begin, early = time.monotonic(), 0
    for i in tqdm(range(count), desc=name):
        act(i)
        if i == count // 10:
            early = resident()
    late = resident()
    grown = late > early * (1 + share)
    if grown:
        print(f"{name}: {early >> 20} MiB after a tenth, {late >> 20} MiB at the end", flush=True)
    print(
        f"ATTACK endurance/{name} {count} {int(grown)} {time.monotonic() - begin:.1f}", flush=True
    )
    return int(grown)


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20000)
    options = parser.parse_args()
    found = measure("session", options.steps, of_session())
    found += measure("trainer", options.steps, of_trainer())
    found += measure("module", options.steps, of_module())
    found += measure("one_class", options.modules, one_class, 0.1)
    found += measure("own_classes", options.modules, own_classes, 0.1)
    return found > 0


if __name__ == "__main__":
    sys.exit(main())

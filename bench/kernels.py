"""The fused kernels beside PyTorch's operators, forward and backward, in alternating turns.

    python bench/kernels.py               a table; ratio: PyTorch's time over Steep's
    python bench/kernels.py attention --turns 30

Both sides do what a training step asks of them: PyTorch eagerly, through autograd; Steep through
ORTModule, so its times include the way from Python and back. AdamW updates one array: PyTorch's
fused=True beside the kernel's own time in a trace of steep.trainer. Single kernels against their
decompositions: build/release/bench/kernels_bench.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("STEEP_CACHE", "off")

import torch
from torch import nn
from torch.nn import functional

import steep

TOKENS, WIDTH, WORDS = 1024, 512, 50257
HEADS, LENGTH = 8, 128


class Apply(nn.Module):
    """A function as a module, with what it holds."""

    def __init__(self, f: Callable[..., torch.Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.f = f
        self.held = nn.ModuleList(modules)

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.f(*self.held, *args)


@dataclass(frozen=True)
class Case:
    title: str
    module: Apply
    inputs: tuple[torch.Tensor, ...]
    """Floats among them get a gradient, as parameters do."""


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def cross_entropy() -> Case:
    labels = torch.randint(0, WORDS, (TOKENS,))
    title = f"softmax cross entropy {TOKENS}×{WORDS:,}"
    return Case(title, Apply(functional.cross_entropy), (floats(TOKENS, WORDS), labels))


def layer_norm() -> Case:
    norm = Apply(lambda norm, x: norm(x), nn.LayerNorm(WIDTH))
    return Case(f"layer norm {TOKENS}×{WIDTH}", norm, (floats(TOKENS, WIDTH),))


def gelu() -> Case:
    def f(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x + bias, approximate="tanh")

    inner = 4 * WIDTH
    return Case(f"bias and GELU {TOKENS}×{inner}", Apply(f), (floats(TOKENS, inner), floats(inner)))


def attention() -> Case:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v)]
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return y.transpose(1, 2).flatten(2)

    shape = (TOKENS // LENGTH, LENGTH, WIDTH)
    title = f"causal attention {shape[0]}×{LENGTH}, {HEADS} heads"
    return Case(title, Apply(f), (floats(*shape), floats(*shape), floats(*shape)))


def dropout() -> Case:
    f = Apply(lambda drop, x, residual: residual + drop(x), nn.Dropout(0.1))
    title = f"dropout and residual {TOKENS}×{WIDTH}"
    return Case(title, f, (floats(TOKENS, WIDTH), floats(TOKENS, WIDTH)))


def embedding() -> Case:
    table = Apply(lambda table, ids: table(ids), nn.Embedding(WORDS, WIDTH))
    ids = torch.randint(0, WORDS, (TOKENS,))
    return Case(f"embedding {TOKENS} of {WORDS:,}×{WIDTH}", table, (ids,))


CASES = {f.__name__: f for f in (cross_entropy, layer_norm, gelu, attention, dropout, embedding)}


def step_of(module: nn.Module, case: Case) -> Callable[[], None]:
    """Forward and backward once; every gradient is made anew."""
    sources = [*module.parameters(), *(t for t in case.inputs if t.requires_grad)]
    with torch.no_grad():
        dy = torch.randn_like(case.module(*case.inputs))

    def step() -> None:
        torch.autograd.grad(module(*case.inputs), sources, dy)

    return step


def milliseconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def compare(case: Case, turns: int) -> tuple[float, float]:
    both = [step_of(steep.ORTModule(case.module), case), step_of(case.module, case)]
    for step in both * 2:
        step()
    times = [[milliseconds(step) for step in both] for _ in range(turns)]
    ours, theirs = zip(*times, strict=True)
    return statistics.median(ours), statistics.median(theirs)


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def adamw(turns: int) -> tuple[float, float]:
    model = Weight()
    update = torch.optim.AdamW(model.parameters(), 1e-3)
    trainer = steep.trainer(model, None, update, predictions=False)
    x = torch.randn(WIDTH)
    trainer.compile(x)
    weight = nn.Parameter(torch.randn(WORDS, WIDTH))
    weight.grad = torch.randn(WORDS, WIDTH)
    optimizer = torch.optim.AdamW([weight], 1e-3, fused=True)
    for _ in range(2):
        trainer.step(x)
        optimizer.step()
    trainer.session.start_profile()
    theirs = []
    for _ in range(turns):
        trainer.step(x)
        theirs.append(milliseconds(optimizer.step))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trainer.session.write_profile(str(path))
        events = json.loads(path.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    ours = [e["dur"] / 1e3 for e in events if e.get("ph") == "X" and "Adam" in json.dumps(e)]
    return statistics.median(ours), statistics.median(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=", ".join([*CASES, "adamw"]))
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    unknown = set(args.cases) - {*CASES, "adamw"}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print("| forward and backward | Steep ms | PyTorch ms | ratio |")
    print("|---|---|---|---|")
    for name in args.cases or [*CASES, "adamw"]:
        if name == "adamw":
            title = f"AdamW {WORDS:,}×{WIDTH}, the update alone"
            ours, theirs = adamw(args.turns)
        else:
            case = CASES[name]()
            title = case.title
            ours, theirs = compare(case, args.turns)
        print(f"| {title} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()

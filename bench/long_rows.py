"""GPT-2 on one long row: time and memory, with dropout and without.

    python bench/long_rows.py                    4,096 tokens
    python bench/long_rows.py --length 8192 --contestants strong steep

GPT-2 of 4 layers of 512 over 50,257 words, AdamW with `fused=True`. `default` is eager PyTorch as
it comes, `strong` eager PyTorch and `compiled` torch.compile with malloc kept from giving memory
back, `steep` ORTModule around the model and its loss, `trainer` steep.trainer. Each run is a
process of its own: together they would not fit in memory. They follow each other, --turns times.
Columns: the median of a step in seconds, how many times faster ORTModule is, the peak of the
process in MiB, its share of that of `default`; the limit is the time of a step's matrix products
alone, of which causal attention needs half of the scores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time

from run import KEEP_MEMORY, program, say
from works import Product, encoder_products, training_products

CONTESTANTS = ("default", "strong", "compiled", "steep", "trainer")
LAYERS, WIDTH, HEADS, WORDS = 4, 512, 8, 50257


def child(contestant: str, length: int, dropout: float, steps: int) -> None:
    """Print the seconds of each step, and the peak in MiB, as JSON."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    from worker import peak_mib

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=LAYERS,
        n_embd=WIDTH,
        n_head=HEADS,
        n_positions=length,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = GPT2LMHeadModel(config)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.model(input_ids=ids, labels=ids).loss
            return loss

    model = run = Loss()
    if contestant == "compiled":
        run = torch.compile(model, dynamic=False)
    if contestant == "steep":
        import steep

        run = steep.ORTModule(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), fused=contestant not in ("default", "trainer")
    )
    trainer = None
    if contestant == "trainer":
        import steep

        trainer = steep.trainer(model, None, optimizer, predictions=False)
    seconds = []
    for _ in range(steps):
        ids = torch.randint(0, WORDS, (1, length))
        start = time.perf_counter()
        if trainer is not None:
            trainer.step(ids)
        else:
            optimizer.zero_grad()
            run(ids).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "peak": peak_mib()}))


def products(length: int) -> list[Product]:
    """Return the products of a step; half of the rows of attention, whose other half is hidden."""
    of_layers = encoder_products(length, LAYERS, WIDTH, 4 * WIDTH, HEADS, length)
    causal = [
        dataclasses.replace(p, m=p.m // 2) if p.batch == HEADS and p.m == length else p
        for p in of_layers
    ]
    return [*causal, *training_products(length, WORDS, WIDTH)]


def limit(length: int) -> float | None:
    """Return the seconds of the products of a step; None if bench/matmul_limit is not built."""
    limit_program = program("matmul_limit")
    if limit_program is None:
        return None
    words = [f"{p.m},{p.n},{p.k},{p.batch},{p.count}" for p in products(length)]
    command = [limit_program, "fp32", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, input="step 4\n")
    return statistics.median(json.loads(ran.stdout.splitlines()[1])[1:])


def run_child(
    contestant: str, length: int, dropout: float, steps: int
) -> tuple[list[float], float]:
    """Return the seconds of the steps but the first two, and the peak in MiB."""
    environment = {**os.environ, **(KEEP_MEMORY if contestant in ("strong", "compiled") else {})}
    command = [
        sys.executable,
        __file__,
        "--child",
        contestant,
        str(length),
        str(dropout),
        str(steps),
    ]
    say(f"{contestant}, {length} tokens, dropout {dropout}")
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"{contestant}: status {ran.returncode}\n{ran.stderr[-2000:]}")
    result = json.loads(ran.stdout.splitlines()[-1])
    return result["seconds"][2:], result["peak"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.1, 0.0])
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="the first two are left out")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        contestant, length, dropout, steps = args.child
        return child(contestant, int(length), float(dropout), int(steps))
    print("| dropout | run by | a step s | ORTModule is faster | peak MiB | of default's |")
    print("|---|---|---|---|---|---|")
    for dropout in args.dropout:
        seconds: dict[str, list[float]] = {name: [] for name in args.contestants}
        peaks = dict.fromkeys(args.contestants, 0.0)
        for _ in range(args.turns):
            for name in args.contestants:
                some, peak = run_child(name, args.length, dropout, args.steps)
                seconds[name] += some
                peaks[name] = max(peaks[name], peak)
        medians = {name: statistics.median(some) for name, some in seconds.items()}
        for name, median in medians.items():
            faster = f"{median / medians['steep']:.2f}" if "steep" in medians else ""
            share = f"{peaks[name] / peaks['default']:.2f}" if "default" in peaks else ""
            print(
                f"| {dropout} | {name} | {median:.2f} | {faster} | {peaks[name]:.0f} | {share} |",
                flush=True,
            )
    if (seconds_of_products := limit(args.length)) is not None:
        print(f"| | matrix products alone | {seconds_of_products:.2f} | | | |")
    return None


if __name__ == "__main__":
    main()

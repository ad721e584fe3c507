"""One contestant in one process: builds a work, then runs steps on request.

Reads lines from standard input: `step N` runs N steps and answers with their seconds as a JSON
list; `quit` ends. The first answer, after building and one step, is a JSON object with
`first_step_s` and `export_s`.
`memory` answers with the peak resident memory in MiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import warnings
from collections.abc import Callable

from works import WORKS


def torch_step(
    work: str, *, compiled: bool, steep: bool, precision: str
) -> tuple[Callable[[], None], float]:
    import torch

    torch.manual_seed(0)
    model, inputs, loss_of = WORKS[work].build()
    model.train()
    start = time.perf_counter()
    if steep:
        from steep import ORTModule

        runner = ORTModule(model)
    else:
        runner = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), WORKS[work].learning_rate, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(runner(*inputs))
        loss.backward()
        optimizer.step()

    return step, time.perf_counter() - start


def linear_step(steep: bool) -> tuple[Callable[[], None], float]:
    """Linear regression, 32 rows of 10 features, mean squared error, SGD."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 10)).astype(np.float32)
    y = (x @ rng.standard_normal((10, 1))).astype(np.float32)
    start = time.perf_counter()
    if steep:
        from linear_model import linear_model

        from steep import TrainingSession

        session = TrainingSession(linear_model(), loss="mse", optimizer="sgd", lr=0.01)

        def step() -> None:
            session.step(x, y)

    else:
        import torch

        model = torch.nn.Linear(10, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        tx, ty = torch.from_numpy(x), torch.from_numpy(y)

        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(tx), ty).backward()
            optimizer.step()

    return step, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=[*WORKS, "linear"])
    parser.add_argument("runner", choices=["torch", "torch-compile", "steep"])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print what they like; the protocol has its own stream
    import torch

    torch.set_num_threads(args.threads)
    if args.work == "linear":
        step, export_s = linear_step(args.runner == "steep")
    else:
        step, export_s = torch_step(
            args.work,
            compiled=args.runner == "torch-compile",
            steep=args.runner == "steep",
            precision=args.precision,
        )
    start = time.perf_counter()
    step()
    first = {"first_step_s": export_s + time.perf_counter() - start, "export_s": export_s}
    print(json.dumps(first), file=answers, flush=True)
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "quit":
            break
        if command == "memory":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(json.dumps(peak), file=answers, flush=True)
            continue
        times = []
        for _ in range(int(rest[0])):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps(times), file=answers, flush=True)


if __name__ == "__main__":
    main()

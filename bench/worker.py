"""One contestant in one process: builds a work, then runs steps on request.

Reads lines from standard input: `step N` runs N steps and answers with their seconds as a JSON
list; `memory` answers with the peak resident memory of the process in MiB; `quit` ends. The first
answer, after building and one step, is a JSON object with `first_step_s` (from the module, or the
ONNX file, to the end of the first step).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import small
from small import SMALL, Step
from works import WORKS, Task

LEARNING_RATE = 1e-3
RUNNERS = ("torch", "torch-compile", "ort-module", "loss-inside", "trainer", "session", "scikit")


def task_of(name: str) -> Task:
    if name.startswith("growth:"):
        from growth import Shape

        return Shape(*map(int, name.removeprefix("growth:").split(","))).task()
    return WORKS[name].build()


def trainer_step(task: Task, precision: str) -> Step:
    import torch

    import steep

    optimizer = torch.optim.AdamW(task.model.parameters(), LEARNING_RATE)
    options: dict[str, Any] = {} if precision == "fp32" else {"precision": precision}
    run = steep.trainer(task.model, task.criterion, optimizer, predictions=False, **options)
    inputs = task.inputs if task.criterion is None else (*task.inputs, task.target)

    def step() -> None:
        run.step(*inputs)

    return step


def torch_step(task: Task, runner: str, precision: str) -> Step:
    """An ordinary PyTorch loop, around PyTorch's model or ORTModule."""
    import torch

    if runner == "loss-inside":
        task = task.with_loss_inside()
    run = task.model
    if runner in ("ort-module", "loss-inside"):
        from steep import ORTModule

        run = ORTModule(run)
    elif runner == "torch-compile":
        run = torch.compile(run)
    optimizer = torch.optim.AdamW(task.model.parameters(), LEARNING_RATE, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = task.loss(run(*task.inputs))
        loss.backward()
        optimizer.step()

    return step


def small_step(name: str, runner: str) -> Step:
    if runner == "session":
        return small.session_step(SMALL[name])
    if runner == "scikit":
        return small.scikit_step(SMALL[name])
    return small.torch_step(SMALL[name], compiled=runner == "torch-compile")


def peak_mib() -> float:
    # Not getrusage, which starts from the size of the process that forked this one.
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match.group(1)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", help="a work of bench/run.py, or growth:SHAPE")
    parser.add_argument("runner", choices=RUNNERS)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ.setdefault("STEEP_CACHE", "off")  # the first step is to be a first one
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print what they like; the protocol has its own stream
    if args.runner not in ("session", "scikit"):
        import torch

        torch.set_num_threads(args.threads)
        torch.manual_seed(0)
    if args.work in SMALL:
        start = time.perf_counter()
        step = small_step(args.work, args.runner)
    else:
        task = task_of(args.work)
        task.model.train()
        start = time.perf_counter()
        if args.runner == "trainer":
            step = trainer_step(task, args.precision)
        else:
            step = torch_step(task, args.runner, args.precision)
    step()
    first = {"first_step_s": time.perf_counter() - start}
    print(json.dumps(first), file=answers, flush=True)
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "quit":
            break
        if command == "memory":
            print(json.dumps(peak_mib()), file=answers, flush=True)
            continue
        times = []
        for _ in range(int(rest[0])):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps(times), file=answers, flush=True)


if __name__ == "__main__":
    main()

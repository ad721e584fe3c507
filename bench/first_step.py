"""Time to the first finished step, and peak memory: in a first process, and in a second that finds
what the first cached.

    python bench/first_step.py               all works, through ORTModule and steep.trainer
    python bench/first_step.py gpt2 --repeat 3
    python bench/first_step.py gpt2 --runners eager aot-eager ort-module

`eager` is PyTorch as it is, `aot-eager` torch.compile with that backend: what Dynamo and
AOTAutograd cost alone.

Each process builds the model and PyTorch's optimizer, then the clock runs: `import steep`, capture,
translation (or the cache), differentiation, planning, fresh memory, the step. The peak is the
process's after four steps, all libraries included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

from worker import peak_mib
from works import WORKS

RUNNERS = ("ort-module", "trainer", "eager", "aot-eager")


def child(work: str, runner: str) -> None:
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    torch.manual_seed(0)
    task = WORKS[work].build()
    task.model.train()
    # A second and more of imports, which PyTorch's own loop pays as well.
    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-3, fused=runner != "trainer")
    start = time.perf_counter()
    if runner in ("ort-module", "trainer"):
        import steep

    if runner == "trainer":
        run = steep.trainer(task.model, task.criterion, optimizer, predictions=False)
        inputs = task.inputs if task.criterion is None else (*task.inputs, task.target)

        def step() -> None:
            run.step(*inputs)
    else:
        module = task.model
        if runner == "ort-module":
            module = steep.ORTModule(module)
        elif runner == "aot-eager":
            module = torch.compile(module, backend="aot_eager")

        def step() -> None:
            optimizer.zero_grad()
            task.loss(module(*task.inputs)).backward()
            optimizer.step()

    step()
    seconds = time.perf_counter() - start
    for _ in range(3):
        step()
    print(json.dumps({"seconds": seconds, "peak": peak_mib()}))


def measure(work: str, runner: str, cache: str) -> dict[str, float]:
    command = [sys.executable, __file__, work, "--child", runner]
    environment = {**os.environ, "STEEP_CACHE": cache}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise SystemExit(process.stderr)
    return dict(json.loads(process.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", choices=[*WORKS, []], default=[])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--runners", nargs="*", choices=RUNNERS, default=RUNNERS[:2])
    parser.add_argument("--child", choices=RUNNERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.works[0], args.child)
    print("| work | through | process | first step done s | peak MiB |\n|---|---|---|---|---|")
    for work in args.works or WORKS:
        for runner in args.runners:
            runs: dict[str, list[dict[str, float]]] = {"first": [], "second": []}
            for _ in range(args.repeat):
                with tempfile.TemporaryDirectory() as folder:
                    for process in runs.values():
                        process.append(measure(work, runner, folder))
            for name, results in runs.items():
                seconds, peak = (
                    statistics.median(run[key] for run in results) for key in ("seconds", "peak")
                )
                print(f"| {work} | {runner} | {name} | {seconds:.2f} | {peak:.0f} |", flush=True)
    return None


if __name__ == "__main__":
    main()

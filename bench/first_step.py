"""Time to the first finished step, and peak memory: in a first process, and in a second that finds
its export.

    python bench/first_step.py               all works, through ORTModule and steep.trainer
    python bench/first_step.py gpt2 --repeat 3

Each process builds the model and PyTorch's optimizer, then the clock runs: export (or the cache),
import, differentiation, planning, fresh memory, the step. `prepare` is what lies before the first
kernel runs. The peak is the process's after four steps, all libraries included.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

from worker import peak_mib
from works import WORKS

RUNNERS = ("ort-module", "trainer")


class Exports(logging.Handler):
    """Adds up the seconds that the log says exports, or the cache, took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        found = re.match(r"(?:exported|took) .* in ([\d.]+) s", record.getMessage())
        self.seconds += float(found[1]) if found else 0.0


def child(work: str, runner: str) -> None:
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    torch.manual_seed(0)
    task = WORKS[work].build()
    task.model.train()
    exports = Exports()
    logging.getLogger("steep").addHandler(exports)
    logging.getLogger("steep").setLevel(logging.INFO)
    # A second and more of imports, which PyTorch's own loop pays as well.
    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-3, fused=runner != "trainer")
    start = time.perf_counter()
    import steep

    if runner == "trainer":
        run = steep.trainer(task.model, task.criterion, optimizer, predictions=False)
        inputs = task.inputs if task.criterion is None else (*task.inputs, task.target)
        run.compile(*inputs)
        run.session.plan(*inputs)
        prepare = time.perf_counter() - start

        def step() -> None:
            run.step(*inputs)
    else:
        module = steep.ORTModule(task.model)
        prepare = float("nan")  # planned within the first call

        def step() -> None:
            optimizer.zero_grad()
            task.loss(module(*task.inputs)).backward()
            optimizer.step()

    step()
    found = {"export": exports.seconds, "prepare": prepare, "total": time.perf_counter() - start}
    for _ in range(3):
        step()
    print(json.dumps({**found, "peak": peak_mib()}))


def measure(work: str, runner: str, cache: str) -> dict[str, float]:
    command = [sys.executable, __file__, work, "--child", runner]
    environment = {**os.environ, "STEEP_CACHE": cache}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", choices=[*WORKS, []], default=[])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--runners", nargs="*", choices=RUNNERS, default=RUNNERS)
    parser.add_argument("--child", choices=RUNNERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.works[0], args.child)
    heads = ("export s", "before the first kernel s", "first step done s", "peak MiB")
    print("| work | through | process |", *(f"{head} |" for head in heads))
    print("|---|---|---|---|---|---|---|")
    for work in args.works or WORKS:
        for runner in args.runners:
            runs: dict[str, list[dict[str, float]]] = {"first": [], "second": []}
            for _ in range(args.repeat):
                with tempfile.TemporaryDirectory() as folder:
                    for process in runs.values():
                        process.append(measure(work, runner, folder))
            for name, found in runs.items():
                row = [statistics.median(r[k] for r in found) for k in found[0]]
                *seconds, peak = row
                cells = [work, runner, name, *(f"{s:.2f}" for s in seconds), f"{peak:.0f}"]
                print(f"| {' | '.join(cells)} |", flush=True)
    return None


if __name__ == "__main__":
    main()

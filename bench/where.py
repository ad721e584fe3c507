"""Where the time of one training step goes, kernel by kernel, beside the matmul-only limit.

Runs a work through steep.trainer, prints milliseconds and share by cause, and writes a trace of one
step that opens in ui.perfetto.dev: each kernel with its node, its types and, where operations are
counted, its GFLOP/s.

    python bench/where.py gpt2
    python bench/where.py bert --precision bf16 --trace bert.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

from run import limit_command
from works import WORKS

CAUSES = {
    "steep.MatMul": "matrix products",
    "MatMul": "matrix products",
    "steep.Attention": "attention",
    "steep.AttentionGrad": "attention",
    "Softmax": "attention",
    "steep.SoftmaxGrad": "attention",
    "steep.SoftmaxCrossEntropy": "cross entropy",
    "steep.SoftmaxCrossEntropyGrad": "cross entropy",
    "steep.Adam": "AdamW",
    "steep.Fused": "elementwise chains",
    "Gelu": "elementwise chains",
    "Add": "elementwise chains",
    "Mul": "elementwise chains",
    "steep.Dropout": "elementwise chains",
    "LayerNormalization": "layer norm",
    "steep.LayerNormalizationGrad": "layer norm",
    "steep.SumTo": "bias gradients",
    "Cast": "weights to bf16",
    "Transpose": "copies",
    "Split": "copies",
    "Concat": "copies",
    "copy": "copies",
    "Gather": "embedding",
    "steep.GatherGrad": "embedding",
}


def profile(name: str, precision: str, steps: int) -> tuple[float, list[list[dict[str, Any]]]]:
    """Median milliseconds of a step without the profiler, and the kernels of `steps` steps."""
    import time

    import torch

    import steep

    torch.manual_seed(0)
    task = WORKS[name].build()
    task.model.train()
    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-3)
    options: dict[str, Any] = {} if precision == "fp32" else {"precision": precision}
    run = steep.trainer(task.model, task.criterion, optimizer, predictions=False, **options)
    inputs = task.inputs if task.criterion is None else (*task.inputs, task.target)
    times, traces = [], []
    for _ in range(3 + steps):
        start = time.perf_counter()
        run.step(*inputs)
        times.append((time.perf_counter() - start) * 1e3)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(steps):
            path = f"{folder}/{i}.json"
            run.session.start_profile()
            run.step(*inputs)
            run.session.write_profile(path)
            traces.append(json.loads(Path(path).read_text())["traceEvents"])
    return statistics.median(times[3:]), traces


def limit_ms(name: str, precision: str, steps: int) -> float | None:
    command = limit_command(name, precision)
    if not command:
        return None
    process = subprocess.run(
        command, input=f"step {steps}\n", capture_output=True, text=True, check=True
    )
    return statistics.median(json.loads(process.stdout.splitlines()[1])) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=list(WORKS))
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--trace", type=Path, help="where to write the trace of one step")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    print("running …", end="\r", file=sys.stderr, flush=True)
    step, traces = profile(args.work, args.precision, args.steps)
    limit = limit_ms(args.work, args.precision, args.steps)
    kernels = [[e for e in trace if e["ph"] == "X"] for trace in traces]
    # Every step runs the same kernels in the same order.
    causes: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for same in zip(*kernels, strict=True):
        cause = CAUSES.get(same[0]["cat"], "other")
        causes[cause] += statistics.median(e["dur"] for e in same) / 1e3
        calls[cause] += 1
    print(f"{WORKS[args.work].title}, {args.precision}, steep.trainer, ms\n")
    print("| cause | ms | kernels |\n|---|---|---|")
    for cause, ms in sorted(causes.items(), key=lambda item: -item[1]):
        print(f"| {cause} | {ms:.1f} | {calls[cause]} |")
    print(f"| between kernels | {step - sum(causes.values()):.1f} | |")
    print(f"| **step** | **{step:.0f}** | {sum(calls.values())} |")
    if limit is not None:
        print(f"| matmul-only limit | {limit:.0f} ({limit / step:.0%} of the step) | |")
    if args.trace is not None:
        args.trace.write_text(json.dumps({"traceEvents": traces[-1], "displayTimeUnit": "ms"}))
        print(f"\nwritten: {args.trace}; open it in ui.perfetto.dev")


if __name__ == "__main__":
    main()

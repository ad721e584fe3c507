"""Training on 1, 2 and 4 processes of one thread, which exchange gradients on this machine.

    python bench/scaling.py
    python bench/scaling.py --width 256 --layers 4 --rows 32 --turns 1     # to see that it works

Each process trains a chain of square matrices with AdamW, on so many rows of its own a step. The
runs take turns; a time is the median of all steps. Columns:

- times one process: the step by that of one process with the same rows a process. Where there are
  fewer processors than processes it tells nothing.
- hidden: the share of the time of all exchanges of tensors during which the process computes.
- sent: what rank 0 has sent in a step, as TCP counts it, by the least that a sum takes.
- memory: of the process that holds most, while it trains (VmRSS), and at any time (VmHWM).
- difference: the largest of a weight after five steps, to one process with the whole batch.

Processes exchange by gloo, or by MPI where the row says so, if mpirun is there. "apart" are so many
processes at once that do not know of each other: what it costs to share the machine. "DDP" is
PyTorch's DistributedDataParallel over gloo, eager, with fused AdamW, on the same model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from zero import STEEP, status_of, write_model

STEPS = 5  # of an epoch
EPOCHS = 4  # the first one compiles
LR = 1e-4
THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


@dataclass
class Case:
    """A way to train, and what was measured of it."""

    processes: int
    zero: int = 0
    ddp: bool = False
    apart: bool = False
    mpi: bool = False
    steps: list[float] = field(default_factory=list)  # seconds
    sent: int = 0  # bytes a step
    now: int = 0  # bytes of memory
    most: int = 0
    hidden: float | None = None
    difference: float | None = None

    @property
    def name(self) -> str:
        if self.ddp or self.apart:
            return "DDP" if self.ddp else "apart"
        return f"--zero {self.zero}" + (" --parallel mpi" if self.mpi else "")


def command(case: Case, rows: int, *more: object) -> list[str]:
    """Return the words that train so many rows a process."""
    batch = rows if case.apart else case.processes * rows
    words: list[object] = [STEEP]
    if case.mpi:
        words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", case.processes, STEEP]
    elif case.processes > 1 and not case.apart:
        words += ["launch", "-n", case.processes]
    words += ["train", "m.onnx", "--data", f"t{batch}.npz", "--loss", "mse"]
    words += ["--optimizer", "adamw", "--lr", LR, "--batch", batch, "--json", *more]
    if case.zero:
        words += ["--zero", case.zero]
    if case.mpi:
        words += ["--parallel", "mpi"]
    return list(map(str, words))


def train(folder: Path, case: Case, rows: int) -> None:
    """Add the steps of a run to the case."""
    words = command(case, rows, "--epochs", EPOCHS)
    env = os.environ | THREAD
    others = [
        subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.DEVNULL)
        for _ in range(case.processes - 1 if case.apart else 0)
    ]
    launcher = subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    last = 0.0
    for line in launcher.stdout:
        report = json.loads(line) if line.startswith("{") else {}
        if report.get("report") != "epoch":
            continue
        now = time.perf_counter()
        if last > 0:
            case.steps.append((now - last) / STEPS)
        last = now
        case.sent = report.get("sent_bytes", 0) // STEPS
        ids = [int(word) for word in children.read_text().split()] or [launcher.pid]
        case.most = max(case.most, *(status_of(each, "VmHWM") for each in ids))
        case.now = max(case.now, *(status_of(each, "VmRSS") for each in ids))
    assert [process.wait() for process in (launcher, *others)] == [0] * (1 + len(others))


def weights(path: Path) -> dict[str, np.ndarray]:
    """Return the weights of a model."""
    arrays = onnx.load(path).graph.initializer
    return {array.name: onnx.numpy_helper.to_array(array) for array in arrays}


def compare(folder: Path, case: Case, rows: int) -> None:
    """Set the difference to one process with the whole batch."""
    for processes, name in ((case.processes, "several.onnx"), (1, "one.onnx")):
        words = command(case, rows, "--epochs", 1, "--out", name)
        if processes == 1:  # without the launcher, and what it alone takes
            words = command(Case(1), case.processes * rows, "--epochs", 1, "--out", name)
        subprocess.run(
            words, cwd=folder, env=os.environ | THREAD, stdout=subprocess.DEVNULL, check=True
        )
    one, several = weights(folder / "one.onnx"), weights(folder / "several.onnx")
    case.difference = max(float(np.abs(one[name] - several[name]).max()) for name in one)


def hidden_share(events: Iterable[Mapping[str, Any]]) -> float:
    """Return the share of the exchanges of tensors during which a kernel runs."""
    kernels, exchanges = [], []
    for event in events:
        if event["ph"] != "X" or event["cat"] == "compile":
            continue
        span = (event["ts"], event["ts"] + event["dur"])
        if event["cat"] != "communication":
            kernels.append(span)
        elif event["args"].get("bytes", 0) > 0:
            exchanges.append(span)
    kernels.sort()
    total = sum(end - start for start, end in exchanges)
    covered = 0.0
    for start, end in exchanges:
        for begin, until in kernels:
            covered += max(0.0, min(end, until) - max(start, begin))
    return float(covered / total)


def trace(folder: Path, case: Case, rows: int) -> list[dict[str, Any]]:
    """Return the events of rank 0 in an epoch after the first."""
    words = command(case, rows, "--epochs", 2, "--profile", "trace.json")
    subprocess.run(
        words, cwd=folder, env=os.environ | THREAD, stdout=subprocess.DEVNULL, check=True
    )
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    compiled = max(e["ts"] + e["dur"] for e in events if e.get("cat") == "compile")
    return [e for e in events if e["ph"] == "X" and e["ts"] > compiled]


def run_ddp(case: Case, args: argparse.Namespace) -> None:
    """Add the steps of a run of DistributedDataParallel to the case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mine = [sys.executable, __file__, "--width", args.width, "--layers", args.layers]
    mine += ["--rows", args.rows, "--ddp", case.processes, "--port", port]
    ranks = [
        subprocess.Popen(
            [*map(str, mine), "--rank", str(rank)],
            env=os.environ | THREAD,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(case.processes)
    ]
    assert ranks[0].stdout is not None
    case.steps += json.loads(ranks[0].stdout.read())
    assert [rank.wait() for rank in ranks] == [0] * case.processes


def ddp_rank(args: argparse.Namespace) -> None:
    """Train as one process of DistributedDataParallel; rank 0 prints the seconds of each step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(args.rank)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{args.port}", rank=args.rank, world_size=args.ddp
    )
    layers: list[torch.nn.Module] = []
    for _ in range(args.layers):
        layers += [torch.nn.Linear(args.width, args.width, bias=False), torch.nn.Tanh()]
    model = DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
    optimizer = torch.optim.AdamW(model.parameters(), LR, fused=True)
    x = torch.randn(args.rows, args.width)
    times = []
    for _ in range(STEPS * EPOCHS):
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), torch.tanh(x)).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    dist.destroy_process_group()
    if args.rank == 0:
        print(json.dumps(times[STEPS:]))


def cells(case: Case, one: float, weight_bytes: int) -> list[str]:
    """Return a row of the table; `one`: seconds of a step of one process."""
    step = statistics.median(case.steps)
    least = 2 * (case.processes - 1) / case.processes * weight_bytes
    mebi = f"{case.now / 2**20:.0f}, {case.most / 2**20:.0f}" if case.most else ""
    return [
        str(case.processes),
        case.name,
        f"{step * 1000:.1f}",
        f"{step / one:.2f}",
        "" if case.hidden is None else f"{case.hidden:.0%}",
        f"{case.sent / least:.4f}" if case.sent and least else "",
        mebi,
        "" if case.difference is None else f"{case.difference:.1e}",
    ]


def add_work(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model that is scaled."""
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=512, help="of each process in a step")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_work(parser)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ddp", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ddp:
        return ddp_rank(args)
    cases = [
        Case(processes, zero)
        for processes in args.processes
        for zero in ((0, 1, 2) if processes > 1 else (0,))
    ]
    if shutil.which("mpirun"):
        cases += [Case(processes, mpi=True) for processes in args.processes if processes > 1]
    cases += [Case(processes, apart=True) for processes in args.processes if processes > 1]
    ddp = [Case(processes, ddp=True) for processes in args.processes]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weight_bytes = write_model(folder / "m.onnx", args.width, args.layers)
        random = np.random.default_rng(1)
        for processes in {1, *args.processes}:
            batch = processes * args.rows
            x = random.normal(size=(STEPS * batch, args.width)).astype(np.float32)
            np.savez(folder / f"t{batch}.npz", x=x, label=np.tanh(x))
        for _ in range(args.turns):
            for case in cases:
                train(folder, case, args.rows)
            for case in ddp:
                run_ddp(case, args)
        for case in cases:
            if case.processes > 1 and not case.apart:
                case.hidden = hidden_share(trace(folder, case, args.rows))
                compare(folder, case, args.rows)
    one = statistics.median(cases[0].steps)
    print(f"weights: {weight_bytes / 2**20:.0f} MiB; {args.rows} rows a process")
    print(
        "| processes | | ms a step | times one process | hidden | sent, by the least | "
        "MiB in an epoch, most | difference |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for case in cases + ddp:
        print(f"| {' | '.join(cells(case, one, weight_bytes))} |")
    return None


if __name__ == "__main__":
    main()

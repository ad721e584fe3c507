"""DistributedDataParallel over gloo, two processes of one thread: alone, and around `ORTModule`.

    python bench/ddp.py
    python bench/ddp.py gpt2 --turns 5

Each contestant is a pair of processes that trains a work of bench/run.py with fused AdamW, each on
a batch of its own; contestants take turns. "strong" keeps malloc from giving memory back;
"compiled" is torch.compile around DDP, the others are eager.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from run import KEEP_MEMORY, Contestant, say, times_faster
from works import WORKS

PROCESSES = 2
RUNNERS: dict[str, dict[str, str]] = {
    "ort-module": {},
    "default": {},
    "strong eager": KEEP_MEMORY,
    "strong compiled": KEEP_MEMORY,
}


def step_of(work: str, runner: str) -> Callable[[], None]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    task = WORKS[work].build()
    task.model.train()
    module = task.model
    if runner == "ort-module":
        from steep import ORTModule

        module = ORTModule(module)
    run = DistributedDataParallel(module)
    if runner == "strong compiled":
        run = torch.compile(run)
    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(run(*task.inputs)).backward()
        optimizer.step()

    return step


def work_alone(work: str, runner: str, rank: int, port: int) -> None:
    """Run one process; that of rank 0 starts the others and speaks the protocol of worker.py."""
    import torch
    import torch.distributed as dist

    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.filterwarnings("ignore")
    os.environ.setdefault("STEEP_CACHE", "off")
    torch.set_num_threads(1)
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for other in range(1, PROCESSES):
            mine = [sys.executable, __file__, work, "--child", runner]
            subprocess.Popen(
                [*mine, "--rank", str(other), "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=PROCESSES)
    torch.manual_seed(rank)
    start = time.perf_counter()
    step = step_of(work, runner)
    step()
    if rank == 0:
        first = {"first_step_s": time.perf_counter() - start}
        print(json.dumps(first), file=answers, flush=True)
    while count := _wanted(rank):
        times = []
        for _ in range(count):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        if rank == 0:
            print(json.dumps(times), file=answers, flush=True)
    dist.destroy_process_group()


def _wanted(rank: int) -> int:
    """Return how many steps rank 0 was asked for; 0 at the end."""
    import torch
    import torch.distributed as dist

    line = sys.stdin.readline() if rank == 0 else ""
    count = torch.tensor(int(line.split()[1]) if line else 0)
    dist.broadcast(count, 0)
    return int(count)


def measure(work: str, args: argparse.Namespace) -> None:
    contestants: dict[str, Contestant] = {}
    try:
        for name, environment in RUNNERS.items():
            say(f"{work}, {name}: the first step …")
            command = [sys.executable, str(Path(__file__).resolve()), work, "--child", name]
            try:
                one = Contestant(name, command, {"OMP_NUM_THREADS": "1", **environment})
            except RuntimeError as e:
                print(f"| {work} | {name} | fails: {e} | | |")
                continue
            contestants[name] = one
        for turn in range(args.turns):
            say(f"{work}: turn {turn + 1} of {args.turns}")
            for contestant in contestants.values():
                contestant.turn(args.steps)
    finally:
        say("")
        for contestant in contestants.values():
            if contestant.process.stdin is not None:
                contestant.process.stdin.close()  # so that the other ranks end as well
            contestant.process.wait()
            contestant.close()
    ours = contestants["ort-module"]
    for name, contestant in contestants.items():
        ratio = times_faster(ours.medians(), contestant.medians())
        cells = (work, name, f"{contestant.median_ms():.0f}", f"{ratio:.2f}")
        print(f"| {' | '.join(cells)} | {contestant.first_step_s:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=["bert", "gpt2"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each contestant in a turn")
    parser.add_argument("--child", choices=RUNNERS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return work_alone(args.works[0], args.child, args.rank, args.port)
    print("| model | DDP around | ms a step | Steep is faster by | first step s |")
    print("|---|---|---|---|---|")
    for work in args.works:
        measure(work, args)
    return None


if __name__ == "__main__":
    main()

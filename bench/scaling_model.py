"""What a step costs on 2 to 1,024 processes: a model, its plot, and its error by a check.

    python bench/scaling_model.py                  measures a step; writes a table and scaling.svg
    python bench/scaling_model.py --gbit 10 100 --latency-us 10
    python bench/scaling_model.py --check          predicted and measured exchanges, in namespaces

The model knows the compute of this machine, and the messages of gloo. A trace of two processes
gives the moments at which backward has the gradients of each bucket, and the bytes of the bucket;
they are stretched to the time of a step of one process. An exchange is an agreement and a sum:

- A message of s bytes takes latency + s / bandwidth (Hockney 1994). Each process begins one every
  --message-us, for the work of the system and of gloo.
- A sum of B bytes is gloo's ring (gloo/allreduce.cc): 2 N segments at least, of 1 MiB at most, two
  of them under way, N - 1 turns of reduce-scatter and N - 1 of all-gather. Each process sends
  2 (N - 1) / N B bytes, the least that is possible (Patarasuk and Yuan 2009).
- An agreement is gloo's all-gather around a ring: N - 1 messages one after the other.
- A bucket begins when it is complete and the one before it has arrived. The step ends when the
  last has arrived, the processes have agreed again, and the weights are updated.

Each process has a machine, or a network card, of its own; all compute equally fast; the switch is
no limit. --check needs root, and ip and tc (bench/namespaces.py); without them it prints
CannotCheckError with the reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from namespaces import CannotCheckError, Namespaces
from scaling import STEPS, THREAD, Case, add_work, command, trace, train
from zero import STEEP, write_model

RANKS = [2**i for i in range(1, 11)]
SEGMENT = 2**20  # gloo's kMaxSegmentSize
NUMBERS = 112  # bytes of an agreement, of each process


@dataclasses.dataclass(frozen=True)
class Network:
    """Of one process: seconds until a message arrives, bytes a second, seconds to begin one."""

    latency: float
    bandwidth: float
    work: float


@dataclasses.dataclass(frozen=True)
class Step:
    """Of one process: when its buckets are complete, their bytes; seconds of its phases."""

    ready: tuple[float, ...]
    bytes: tuple[int, ...]
    backward: float
    update: float

    def stretched(self, seconds: float) -> Step:
        """Return the same step in another time."""
        by = seconds / (self.backward + self.update)
        ready = tuple(moment * by for moment in self.ready)
        return Step(ready, self.bytes, self.backward * by, self.update * by)


def seconds_of_turns(segments: int, own: int, size: float, network: Network) -> float:
    """Return the time of one phase of gloo's ring; `own`: segments of one process."""
    arrived = [0.0] * (segments - own)
    issued = sent = 0.0
    for i in range(segments - own):
        # Two segments are under way; what is passed on has arrived `own` segments before.
        before = arrived[i - 2] if i >= 2 else 0.0
        issued = max(issued + network.work, before, arrived[i - own] if i >= own else 0.0)
        sent = max(issued, sent) + size / network.bandwidth
        arrived[i] = sent + network.latency
    return arrived[-1] + network.work


def seconds_of_sum(size: int, ranks: int, network: Network) -> float:
    """Return the time of a sum of so many bytes."""
    segments = max(-(-size // SEGMENT), 2 * ranks)
    segments = -(-segments // ranks) * ranks
    own = segments // ranks
    return 2 * seconds_of_turns(segments, own, size / segments, network)


def seconds_of_agreement(ranks: int, network: Network) -> float:
    """Return the time of an exchange of some numbers."""
    message = network.latency + 2 * network.work + NUMBERS / network.bandwidth
    return (ranks - 1) * message


def seconds_of_bucket(size: int, ranks: int, network: Network) -> float:
    """Return the time from the start of an exchange of gradients to its end."""
    return seconds_of_agreement(ranks, network) + seconds_of_sum(size, ranks, network)


def seconds_of_step(step: Step, ranks: int, network: Network, overlaps: bool = True) -> float:
    """Return the time of a step of so many processes."""
    agreement = seconds_of_agreement(ranks, network)
    arrived = 0.0
    for ready, size in zip(step.ready, step.bytes, strict=True):
        begin = ready if overlaps else step.backward
        arrived = max(arrived, begin) + seconds_of_bucket(size, ranks, network)
    return agreement + max(step.backward, arrived) + agreement + step.update


def steps_of(events: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Divide the events of a trace into whole steps of several processes."""
    events = sorted(events, key=lambda event: event["ts"])
    starts = [i for i, e in enumerate(events) if e["name"] == "the start of a step"]
    return [events[i:j] for i, j in itertools.pairwise([*starts, len(events)])]


def step_of(events: Sequence[dict[str, Any]]) -> Step:
    """Return what one step of a trace says of the compute."""
    own = [e for e in events if e["cat"] != "communication"]
    start = min(e["ts"] for e in own)
    buckets = [e for e in events if "bucket" in e.get("args", {})]
    delivered = [e for e in own if e["cat"] == "steep.Deliver"]
    ready, sizes, at = [], [], 0
    for bucket in sorted(buckets, key=lambda e: e["args"]["bucket"]):
        more = bucket["name"].rpartition(" and ")[2]
        at += 1 + (int(more.split()[0]) if " and " in bucket["name"] else 0)
        ready.append((delivered[at - 1]["ts"] - start) / 1e6)
        sizes.append(bucket["args"]["bytes"])
    backward = max(e["ts"] + e["dur"] for e in delivered)
    update = sum(e["dur"] for e in own if e["ts"] > backward)
    return Step(tuple(ready), tuple(sizes), (backward - start) / 1e6, update / 1e6)


def measured_step(folder: Path, rows: int) -> Step:
    """Return the median step of this machine, with the time of one process alone."""
    alone = Case(1)
    train(folder, alone, rows)
    steps = [step_of(events) for events in steps_of(trace(folder, Case(2), rows))]
    ready = np.median([step.ready for step in steps], axis=0)
    middle = Step(
        tuple(map(float, ready)),
        steps[0].bytes,
        statistics.median(step.backward for step in steps),
        statistics.median(step.update for step in steps),
    )
    return middle.stretched(statistics.median(alone.steps))


def draw(step: Step, networks: dict[float, Network], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    one = step.backward + step.update
    colors = itertools.cycle(("#0b3d66", "#1f77b4", "#7d8594"))
    for gbit, network in networks.items():
        color = next(colors)
        for overlaps, line in ((True, "-"), (False, ":")):
            times = [seconds_of_step(step, n, network, overlaps) for n in RANKS]
            label = f"{gbit:g} Gbit/s" + ("" if overlaps else ", exchanged after backward")
            axes.plot(RANKS, [one / t for t in times], line, color=color, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(RANKS, [f"{n:,}" for n in RANKS])
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("processes, each with the same rows")
    axes.set_ylabel("rows a second and process,\nby those of one process")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def report(step: Step, networks: dict[float, Network]) -> None:
    """Print the table of the model."""
    total = sum(step.bytes)
    print(
        f"one process: {step.backward * 1000:.0f} ms to the end of backward, "
        f"{step.update * 1000:.0f} ms update; {len(step.bytes)} buckets, {total / 2**20:.0f} MiB"
    )
    heads = [f"{gbit:g} Gbit/s, ms | after backward, ms" for gbit in networks]
    print(f"| processes | {' | '.join(heads)} |")
    print("|---" * (1 + 2 * len(networks)) + "|")
    for ranks in RANKS:
        times = [
            f"{seconds_of_step(step, ranks, network, overlaps) * 1000:.0f}"
            for network in networks.values()
            for overlaps in (True, False)
        ]
        print(f"| {ranks:,} | {' | '.join(times)} |")


def exchange_in(
    folder: Path, ranks: int, namespaces: Namespaces, rows: int
) -> list[list[dict[str, Any]]]:
    """Return the steps of rank 0's trace of a training in these namespaces."""
    words = command(Case(1), ranks * rows, "--epochs", 2, "--parallel", "gloo")
    with tempfile.TemporaryDirectory() as rendezvous:
        processes = []
        for rank in range(ranks):
            variables = {
                "STEEP_RANK": str(rank),
                "STEEP_SIZE": str(ranks),
                "STEEP_RENDEZVOUS": rendezvous,
                "STEEP_ADDRESS": namespaces.address(rank),
            }
            more = ["--profile", "trace.json"] if rank == 0 else []
            processes.append(
                subprocess.Popen(
                    [*namespaces.inside(rank), *words, *more],
                    cwd=folder,
                    env=os.environ | THREAD | variables,
                    stdout=subprocess.DEVNULL,
                )
            )
        assert [process.wait() for process in processes] == [0] * ranks
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return steps_of([e for e in events if e["ph"] == "X"])[STEPS:]


def check(
    folder: Path, rows: int, settings: Iterator[tuple[int, float, float]], work: float
) -> None:
    """Print the exchanges of a step as the model predicts them and as they are."""
    print("| processes | Gbit/s | delay ms | by | predicted ms | measured ms | ratio |")
    print("|---|---|---|---|---|---|---|")
    for ranks, gbit, delay_ms in settings:
        try:
            with Namespaces(ranks, gbit, delay_ms) as namespaces:
                steps = exchange_in(folder, ranks, namespaces, rows)
        except CannotCheckError as error:
            print(f"| {ranks} | {gbit:g} | {delay_ms:g} | CannotCheckError: {error} | | | |")
            continue
        network = Network(delay_ms / 1000, gbit * 1e9 / 8, work)
        buckets = [[e for e in step if "bucket" in e.get("args", {})] for step in steps]
        sizes = [e["args"]["bytes"] for e in buckets[0]]
        predicted = sum(seconds_of_bucket(size, ranks, network) for size in sizes)
        measured = statistics.median(sum(e["dur"] for e in step) / 1e6 for step in buckets)
        times = (f"{predicted * 1e3:.0f}", f"{measured * 1e3:.0f}", f"{measured / predicted:.2f}")
        cells = (str(ranks), f"{gbit:g}", f"{delay_ms:g}", namespaces.kind, *times)
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_work(parser)
    parser.add_argument("--gbit", type=float, nargs="*", default=[1, 10, 100])
    parser.add_argument("--latency-us", type=float, default=20)
    parser.add_argument("--message-us", type=float, default=10)
    parser.add_argument("--plot", type=Path, default=Path("scaling.svg"))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="of --check")
    parser.add_argument("--delay-ms", type=float, nargs="*", default=[0, 2, 10], help="of --check")
    args = parser.parse_args()
    work = args.message_us / 1e6
    assert STEEP.exists(), f"{STEEP}: build it first"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "m.onnx", args.width, args.layers)
        random = np.random.default_rng(1)
        for ranks in {1, 2, *args.ranks}:
            x = random.normal(size=(STEPS * ranks * args.rows, args.width)).astype(np.float32)
            np.savez(folder / f"t{ranks * args.rows}.npz", x=x, label=np.tanh(x))
        if args.check:
            settings = itertools.product(args.ranks, args.gbit, args.delay_ms)
            return check(folder, args.rows, settings, work)
        step = measured_step(folder, args.rows)
    networks = {g: Network(args.latency_us / 1e6, g * 1e9 / 8, work) for g in args.gbit}
    report(step, networks)
    draw(step, networks, args.plot)
    return print(f"wrote {args.plot}")


if __name__ == "__main__":
    main()

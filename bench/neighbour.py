"""Training beside another busy process: what a step costs when processors are shared.

    python bench/neighbour.py                       lm, one busy process
    python bench/neighbour.py bert --turns 15
    python bench/neighbour.py lm --busy 2

Steep's trainer, PyTorch as it comes, and strong PyTorch (bench/run.py) are processes of their own
and take one step each in turn. In every other turn, processes that only count are awake, too. The
last column is the median, over the turns, of a step beside them divided by one without them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator

from run import HERE, RUNNERS, STRONG, Contestant, say
from works import WORKS

UNCOUNTED = 2  # steps after the neighbours wake up or fall asleep
CONTESTANTS = ("trainer", "default", *STRONG)


class Neighbours:
    """Processes that keep a processor busy while they are awake."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-c", "while True: pass"]
        self.processes = [subprocess.Popen(command) for _ in range(count)]
        self.awake(False)

    def awake(self, wanted: bool) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT if wanted else signal.SIGSTOP)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def started(work: str, precision: str, threads: int) -> Iterator[dict[str, Contestant]]:
    """The contestants, by name."""
    contestants: dict[str, Contestant] = {}
    try:
        for name in CONTESTANTS:
            say(f"{name}: building, first step …")
            runner, environment = RUNNERS[name]
            command = [sys.executable, str(HERE / "worker.py"), work, runner]
            command += ["--precision", precision, "--threads", str(threads)]
            try:
                contestants[name] = Contestant(
                    name, command, {"OMP_NUM_THREADS": str(threads), **environment}
                )
            except RuntimeError as error:
                print(f"{name}: {error}")
        yield contestants
    finally:
        for contestant in contestants.values():
            contestant.close()


def measure(
    contestants: dict[str, Contestant], neighbours: Neighbours, turns: int, steps: int
) -> dict[str, dict[bool, list[float]]]:
    """Median milliseconds of each turn, by contestant and by whether the neighbours were awake."""
    times: dict[str, dict[bool, list[float]]] = {n: {False: [], True: []} for n in contestants}
    for turn in range(turns):
        say(f"turn {turn + 1} of {turns}")
        for awake in (False, True):
            neighbours.awake(awake)
            for name, contestant in contestants.items():
                contestant.ask(f"step {UNCOUNTED}")
                seconds = contestant.ask(f"step {steps}")
                times[name][awake].append(1e3 * statistics.median(seconds))
    say("")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", nargs="?", default="lm", choices=WORKS)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--steps", type=int, default=1, help="steps of each contestant in a turn")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--busy", type=int, default=1, help="number of busy processes")
    args = parser.parse_args()
    neighbours = Neighbours(args.busy)
    try:
        with started(args.work, args.precision, args.threads) as contestants:
            times = measure(contestants, neighbours, args.turns, args.steps)
    finally:
        neighbours.close()
    print(f"{WORKS[args.work].title}, {args.precision}, {args.threads} threads, {args.busy} busy\n")
    print("| run by | alone | beside | times as long |\n|---|---|---|---|")
    for name, of in times.items():
        ratio = statistics.median(b / a for a, b in zip(of[False], of[True], strict=True))
        alone, beside = (statistics.median(of[awake]) for awake in (False, True))
        print(f"| {name} | {alone:.0f} ms | {beside:.0f} ms | {ratio:.2f} |")


if __name__ == "__main__":
    main()

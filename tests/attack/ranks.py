"""A process of a training is killed, stopped, cut off or out of disk, at any of its moments.

    python -m tests.attack.ranks build/release/steep [--cases 200] [--seed 0]

Three processes of `steep launch` train, and save a checkpoint after each epoch. A library that is
loaded into them makes the fault at a call: at the start, as they connect, in forward, in the sum of
gradients, in the update, in a save. Then all processes must end within seconds (LIMITS), with an
error that names the rank (one that is cut off from others on its machine still beats: it is not
named); and two processes must resume from the checkpoint, whose step is not before that of any
checkpoint that was seen complete. Prints a line ATTACK for each kind and moment.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from tqdm import tqdm

SOURCE = Path(__file__).with_name("fault_at_call.c")
RANKS = 3
WIDTH = 3000  # each message of a sum is larger than what the library calls a small one
SECONDS = 90  # after which a training hangs
# Most seconds from a fault to the end of the training: 1 and 10 to notice it, and what it takes on
# a busy machine to say it and to end. A full disk is a fault when something is written to it, and
# the system notices a cut when something is sent.
LIMITS = {"kill": 8, "stop": 17}
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
KINDS = ("kill", "stop", "cut", "full")
# The call, the most calls before the fault, and the most microseconds after it. Forward begins
# after a small exchange, and the update follows the sum.
MOMENTS = {
    "start": ("start", 1, 200_000),
    "open": ("open", 4, 2_000),  # one listens, and accepts from or connects to two others
    "forward": ("small", 40, 3_000),
    "reduce": ("large", 30, 0),
    "step": ("large", 30, 3_000),
    "save": ("save", 25, 0),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A fault: what, when, and in which process."""

    kind: str
    moment: str
    rank: int
    count: int
    delay: int
    zero: int

    @property
    def name(self) -> str:
        """Kind and moment."""
        return f"{self.kind}/{self.moment}"


def cases(number: int, seed: int) -> list[Case]:
    """All kinds at all moments, one after the other, with random counts and ranks."""
    rng = random.Random(seed)
    chosen = []
    for kind, moment in itertools.islice(
        itertools.cycle(itertools.product(KINDS, MOMENTS)), number
    ):
        _, most, delay = MOMENTS[moment]
        # Rank 0 writes: no other has a save of its own, or needs room on the disk.
        rank = 0 if moment == "save" or kind == "full" else rng.randrange(RANKS)
        count = rng.randint(1, most)
        chosen.append(Case(kind, moment, rank, count, rng.randint(0, delay), rng.randrange(2)))
    return chosen


def prepare(folder: Path) -> None:
    """Write a model, its data and the library."""
    rng = np.random.default_rng(0)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["p"]),
        onnx.helper.make_node("Tanh", ["p"], ["h"]),
        onnx.helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    tensors = [
        onnx.numpy_helper.from_array(rng.normal(0, 0.1, shape).astype(np.float32), name)
        for name, shape in {"w": (8, WIDTH), "v": (WIDTH, 4)}.items()
    ]
    inputs = [value("x", onnx.TensorProto.FLOAT, ["n", 8])]
    outputs = [value("y", onnx.TensorProto.FLOAT, ["n", 4])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "m.onnx")
    x, y = rng.normal(size=(24, 8)), rng.normal(size=(24, 4))
    np.savez(folder / "t.npz", x=x.astype(np.float32), label=y.astype(np.float32))
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        folder / "fault.so",
        SOURCE,
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True)


def words_of(program: str, processes: int, *words: object) -> list[str]:
    """The command of a training."""
    train = ("train", "m.onnx", "--data", "t.npz", "--loss", "mse", "--lr", 0.01, "--batch", 6)
    return [str(w) for w in (program, "launch", "-n", processes, *train, "--json", *words)]


def step_of(run: Path) -> int:
    """The step of the checkpoint that is there now; 0 for none."""
    try:
        return int(json.loads((run / "manifest.json").read_bytes())["step"])
    except FileNotFoundError:
        return 0


def attack(program: str, folder: Path, case: Case) -> str:
    """What went wrong; "" for nothing."""
    run, mark = folder / "run", folder / "mark"
    call = MOMENTS[case.moment][0]
    fault = {"FAULT_RANK": case.rank, "FAULT_KIND": case.kind, "FAULT_CALL": call}
    fault |= {"FAULT_COUNT": case.count, "FAULT_DELAY": case.delay, "FAULT_MARK": mark}
    fault |= {"FAULT_SAVE": run}
    variables = os.environ | {name: str(value) for name, value in fault.items()}
    variables |= {"LD_PRELOAD": str(folder / "fault.so"), "OMP_NUM_THREADS": "1"}
    words = words_of(program, RANKS, "--epochs", 1000, "--checkpoint", run, "--zero", case.zero)
    with (folder / "log").open("w+", encoding="utf-8") as log:
        launcher = subprocess.Popen(
            words, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT
        )
        seen, since, begin = 0, 0.0, time.monotonic()
        while launcher.poll() is None:
            seen = max(seen, step_of(run))
            if since == 0 and mark.exists():
                since = time.monotonic()
            if time.monotonic() - (since or begin) > SECONDS:
                launcher.kill()
                launcher.wait()
                return f"{case} {'hangs' if since else 'never happened'}"
            time.sleep(0.02)
        late = time.monotonic() - (since or begin) - LIMITS.get(case.kind, SECONDS)
        log.seek(0)
        said = log.read()
    if not mark.exists():
        return f"{case} never happened: exit code {launcher.returncode}: {said[-300:]}"
    if launcher.returncode == 0:
        return f"{case} was no error: {said[-300:]}"
    if any(f"was ended by signal {number} " in said for number in CRASHES):
        return f"{case} made a process crash: {said[-300:]}"
    if late > 0:
        return f"{case} was noticed {late:.1f} s too late: {said[-300:]}"
    needs = {
        "full": ("disk", "space"),
        "cut": ("Another process of this training", "could not connect"),
    }
    if not any(word in said for word in needs.get(case.kind, (f"rank {case.rank} ",))):
        return f"{case} is not named: {said[-300:]}"
    return resumed(program, folder, seen)


def resumed(program: str, folder: Path, seen: int) -> str:
    """What went wrong when a training goes on; "" for nothing. ``seen``: a step that was saved."""
    run = folder / "run"
    kept = step_of(run)
    if kept < seen:
        return f"step {seen} was saved, and {kept} is there"
    if kept == 0:
        return ""
    epochs = kept // 4 + 1  # of 24 rows in batches of 6
    words = words_of(program, 2, "--resume", run, "--epochs", epochs, "--checkpoint", run)
    process = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if process.returncode != 0:
        return f"cannot resume: {process.stdout[-200:]} {process.stderr[-300:]}"
    return "" if step_of(run) == epochs * 4 else f"step {step_of(run)} after {epochs} epochs"


def attack_all(program: str, chosen: list[Case]) -> list[str]:
    """Run the cases, print the lines ATTACK, and return what went wrong."""
    ran: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    bad: Counter[str] = Counter()
    found = []
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for case in (bar := tqdm(chosen, unit="fault")):
            begin = time.monotonic()
            with tempfile.TemporaryDirectory() as own:
                for file in Path(name).iterdir():
                    Path(own, file.name).symlink_to(file)
                said = attack(program, Path(own), case)
            ran[case.name] += 1
            seconds[case.name] += time.monotonic() - begin
            if said:
                bad[case.name] += 1
                found.append(said)
                bar.write(said, file=sys.stdout)
    for what, count in ran.items():
        print(f"ATTACK ranks/{what} {count} {bad[what]} {seconds[what]:.1f}")
    return found


def main() -> int:
    """Make as many faults as the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    program = str(Path(options.program).resolve())
    return len(attack_all(program, cases(options.cases, options.seed))) > 0


if __name__ == "__main__":
    sys.exit(main())

"""`steep launch … --zero`: memory, bytes and time of a step, with whole and divided states.

    python bench/zero.py
    python bench/zero.py --width 1024 --layers 8 --processes 1 2 4

Each run trains a chain of square matrices with AdamW, one thread a process. Memory is the most that
a process has held (VmHWM), and what it holds during the last epoch (VmRSS); "sent" is what rank 0
has sent in a step, as TCP counts it, divided by the least that a sum over all processes takes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

ROOT = Path(__file__).resolve().parent.parent
STEEP = ROOT / "build" / "release" / "steep"
ROWS, BATCH, EPOCHS = 64, 16, 5


def write_model(path: Path, width: int, layers: int) -> int:
    """Write the model; return the bytes of its weights."""
    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i in range(layers):
        array = (random.normal(size=(width, width)) / width**0.5).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(array, f"w{i}"))
        nodes.append(onnx.helper.make_node("MatMul", [value, f"w{i}"], [f"p{i}"]))
        last = i + 1 == layers
        nodes.append(
            onnx.helper.make_node(
                "Identity" if last else "Tanh", [f"p{i}"], ["y" if last else f"h{i}"]
            )
        )
        value = f"h{i}"
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width])
        for name in ("x", "y")
    ]
    graph = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return layers * width * width * 4


def status_of(process: int, field: str) -> int:
    """Bytes of a line of /proc/PROCESS/status; 0 if the process has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def run(folder: Path, processes: int, zero: int) -> tuple[list[int], list[int], float, int]:
    """The most memory and the last memory of each process, seconds a step, bytes a step."""
    words = ["launch", "-n", processes, "train", "m.onnx", "--data", "t.npz", "--loss", "mse"]
    words += ["--optimizer", "adamw", "--lr", 1e-4, "--batch", BATCH, "--epochs", EPOCHS]
    words += ["--json", "--zero", zero, "--checkpoint", f"run{processes}{zero}"]
    launcher = subprocess.Popen(
        [STEEP, *map(str, words)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    most: list[int] = []
    now: list[int] = []
    reports: list[tuple[float, int]] = []
    last = time.perf_counter()
    for line in launcher.stdout:
        report = json.loads(line) if line.startswith("{") else {}
        if report.get("report") != "epoch":
            continue
        before, last = last, time.perf_counter()
        reports.append((last - before, report.get("sent_bytes", 0)))
        ids = [int(word) for word in children.read_text().split()]
        most = [status_of(each, "VmHWM") for each in ids] or most
        if len(reports) == EPOCHS - 1:  # no checkpoint is being written
            now = [status_of(each, "VmRSS") for each in ids]
    assert launcher.wait() == 0
    steps = ROWS // BATCH
    seconds = sorted(each[0] for each in reports[1:])[len(reports) // 2 - 1] / steps
    sent = sorted(each[1] for each in reports[1:])[len(reports) // 2 - 1] // steps
    return most, now, seconds, sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 3, 4])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = write_model(folder / "m.onnx", args.width, args.layers)
        random = np.random.default_rng(1)
        x = random.normal(size=(ROWS, args.width)).astype(np.float32)
        np.savez(folder / "t.npz", x=x, label=np.tanh(x))
        print(f"weights: {weights / 2**20:.0f} MiB, moments: {2 * weights / 2**20:.0f} MiB")
        print(
            "| processes | --zero | MiB in an epoch, most | at any time | sent, by the least | ms |"
        )
        print("|---|---|---|---|---|---|")
        for count in args.processes:
            for zero in (0, 1, 2) if count > 1 else (0,):
                most, now, seconds, sent = run(folder, count, zero)
                least = 2 * (count - 1) / count * weights
                cells = (
                    count,
                    zero,
                    f"{max(now) / 2**20:.0f}",
                    f"{max(most) / 2**20:.0f}",
                    f"{sent / least:.4f}" if least else "",
                    f"{seconds * 1000:.0f}",
                )
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()

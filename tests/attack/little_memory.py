"""Little memory: `steep train`, a session and a capture in Python under limits of address space.

Run at length by scripts/attack, in short by tests/python/session/test_out_of_memory.py. A run ends
in success or in an error of the engine's that says so; by no signal, and not by another library's
words. What the system's loader says before the engine's code runs is the system's; what PyTorch
says in a capture is PyTorch's.

    python -m tests.attack.little_memory PROGRAM [STEP_MB]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

MLP = """<ir_version: 8, opset_import: ["": 17]> g (float[n,64] x) => (float[n,10] y) {
 a = MatMul(x, w0) c = Relu(a) d = MatMul(c, w1) f = Relu(d) y = MatMul(f, w2) }"""
CNN = """<ir_version: 8, opset_import: ["": 17]> g (float[n,3,16,16] x) => (float[n,10] y) {
 a = Conv<kernel_shape=[3,3],pads=[1,1,1,1]>(x, w0) c = Relu(a)
 p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(c)
 d = Conv<kernel_shape=[3,3],pads=[1,1,1,1]>(p, w1) f = Relu(d)
 q = GlobalAveragePool(f) r = Flatten(q) y = MatMul(r, w2) }"""
MODELS = {
    "mlp": (MLP, [(64, 128), (128, 128), (128, 10)], (128, 64)),
    "cnn": (CNN, [(16, 3, 3, 3), (32, 16, 3, 3), (32, 10)], (128, 3, 16, 16)),
}
SESSION = """
import resource, sys
import numpy as np, steep
path, data, room = sys.argv[1:]
data = np.load(data)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + int(room)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    session = steep.TrainingSession(path, loss="softmax_cross_entropy")
    for _ in range(2):
        session.step(data["x"], data["label"])
except (steep.OutOfMemoryError, MemoryError) as e:
    sys.exit(4)
"""
# What PyTorch and the loader say in these words is theirs: a capture runs mostly in them.
CAPTURE = """
import resource, sys
import torch, steep
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)]
net = torch.nn.Sequential(*layers)
x = torch.randn(128, 64)
expected = net(x)
module = steep.ORTModule(net)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
theirs = "allocate memory", "bad_alloc", "failed to map segment", "can't start new thread"
try:
    for _ in range(2):
        y = module(x)
        y.sum().backward()
        torch.testing.assert_close(y, expected)
except (steep.OutOfMemoryError, MemoryError) as e:
    sys.exit(4)
except (ImportError, OSError, RuntimeError) as e:
    if not any(said in str(e) for said in theirs):
        raise
    sys.exit(4)
"""
_SAID = ("steep: There is not enough memory", "steep: Memory", "steep: The process is about to")


def write_models(folder: Path) -> None:
    """Write NAME.onnx and NAME.npz of each model."""
    rng = np.random.default_rng(0)
    for name, (text, shapes, extents) in MODELS.items():
        model = onnx.parser.parse_model(text)
        for i, shape in enumerate(shapes):
            weight = (rng.standard_normal(shape) * 0.1).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(weight, f"w{i}"))
        onnx.save(model, folder / f"{name}.onnx")
        x = rng.standard_normal(extents).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, label=rng.integers(0, 10, extents[0]))


def environment(threads: int) -> dict[str, str]:
    """Return that of a process of so many threads."""
    own = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "STEEP_CACHE": "off"}
    return {**os.environ, **own}


def fault_of_program(program: str, folder: Path, name: str, threads: int, limit: int) -> str:
    """Train within a limit of bytes; return what was wrong about how it ended, "" for nothing."""
    files = ["--data", folder / f"{name}.npz", "--out", folder / "out.onnx"]
    how = ["--loss", "softmax_cross_entropy", "--epochs", "1", "--batch", "64"]
    done = subprocess.run(
        [program, "train", folder / f"{name}.onnx", *files, *how],
        env=environment(threads),
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    loader = done.returncode == 127 and "shared librar" in done.stderr
    typed = done.returncode == 4 and any(said in done.stderr for said in _SAID)
    if done.returncode == 0 or typed or loader:
        return ""
    return f"{name}, {threads} threads, {limit} bytes: {done.returncode} {done.stderr[-300:]}"


def fault_of_script(what: str, threads: int, room: int, *words: str | Path) -> str:
    """Run a script with so many bytes beside what Python has; return what was wrong."""
    done = subprocess.run(
        [sys.executable, "-c", *words, str(room)],
        env=environment(threads),
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode in (0, 4):
        return ""
    return f"{what}, {threads} threads, {room} more: {done.returncode} {done.stderr[-300:]}"


def fault_of_session(folder: Path, name: str, threads: int, room: int) -> str:
    """Step a session of a model; return what was wrong about how it ended."""
    files = folder / f"{name}.onnx", folder / f"{name}.npz"
    return fault_of_script(name, threads, room, SESSION, *files)


def fault_of_capture(threads: int, room: int) -> str:
    """Capture a module and call it; return what was wrong about how it ended."""
    return fault_of_script("capture", threads, room, CAPTURE)


def faults(program: str, step: int, most: int) -> Iterator[tuple[int, str]]:
    """Yield 1 and a fault, or "", for each limit from 65 MiB to ``most`` MiB by ``step``."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_models(folder)
        for name in MODELS:
            for threads in (1, 2, 8):
                for limit in range(65, most, step):
                    yield 1, fault_of_program(program, folder, name, threads, limit << 20)
                for room in range(0, most // 2, step):
                    yield 1, fault_of_session(folder, name, threads, room << 20)
    for threads in (1, 2, 8):
        for room in range(0, most, step):
            yield 1, fault_of_capture(threads, room << 20)


def main() -> None:
    """Sweep, print each fault and a row for scripts/attack."""
    begin, cases, found = time.monotonic(), 0, 0
    step = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    for count, fault in faults(sys.argv[1], step, 1024):
        cases += count
        if fault:
            found += 1
            print(fault, flush=True)
    print(f"ATTACK little_memory {cases} {found} {time.monotonic() - begin:.0f}")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()

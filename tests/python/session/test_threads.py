"""The option ``threads`` of sessions: how many threads compute in their calls."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import steep

# Prints the threads of the process before and after the calls of a session.
PROGRAM = """
import os, sys
import numpy as np, onnx.parser, steep

text = '<ir_version: 8, opset_import: ["": 17]> g (float[n,256] x) => (float[n,256] y)' \
    '{ y = MatMul(x, w) }'
model = onnx.parser.parse_model(text)
w = onnx.numpy_helper.from_array(np.ones((256, 256), np.float32), "w")
model.graph.initializer.append(w)
x = np.ones((512, 256), np.float32)
kind, threads = sys.argv[1], int(sys.argv[2])
before = len(os.listdir("/proc/self/task"))
if kind == "training":
    session = steep.TrainingSession(model, loss="mse", threads=threads)
    session.step(x, x)
elif kind == "gradients":
    session = steep.GradientSession(model, wrt=["w"], threads=threads)
    y, run = session.forward({"x": x})
    session.backward(run, {"y": x})
else:
    options = steep.SessionOptions()
    options.intra_op_num_threads = threads
    steep.InferenceSession(model, options).run(None, {"x": x})
print(len(os.listdir("/proc/self/task")) - before)
"""

# Steps until the process has two more threads than after the first step, or for some seconds;
# prints how many more.
STEPS = """
import os, sys, time
import numpy as np, onnx.parser, steep

text = '<ir_version: 8, opset_import: ["": 17]> g (float[n,512] x) => (float[n,512] y)' \
    '{ y = MatMul(x, w) }'
model = onnx.parser.parse_model(text)
w = onnx.numpy_helper.from_array(np.ones((512, 512), np.float32), "w")
model.graph.initializer.append(w)
x = np.ones((512, 512), np.float32)
session = steep.TrainingSession(model, loss="mse")
threads = lambda: len(os.listdir("/proc/self/task"))
session.step(x, x)
before, end = threads(), time.monotonic() + float(sys.argv[1])
while threads() < before + 2 and time.monotonic() < end:
    session.step(x, x)
print(threads() - before)
"""


def model() -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,2] x) => (float[n,2] y)
        <float[2,2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"""
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("kind", ["training", "gradients", "inference"])
@pytest.mark.parametrize(("threads", "started"), [(0, 2), (1, 0), (2, 1)])
def test_a_session_starts_as_many_threads(kind: str, threads: int, started: int) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    words = [sys.executable, "-c", PROGRAM, kind, str(threads)]
    said = subprocess.run(words, env=environment, text=True, capture_output=True, check=True)
    assert int(said.stdout) == started


@pytest.mark.parametrize(
    ("policy", "seconds", "more"), [({}, 60, 2), ({"OMP_WAIT_POLICY": "active"}, 2, 0)]
)
def test_threads_spin_briefly_beside_busy_processes(
    policy: dict[str, str], seconds: int, more: int
) -> None:
    """OpenMP does so while there are more threads than processors, so two that sleep are added."""
    processors = len(os.sched_getaffinity(0))
    if processors < 2 or not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("one processor, or a kernel that does not tell how long threads wait")
    own = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    own |= {"OMP_NUM_THREADS": str(processors), **policy}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processors)]
    try:
        words = [sys.executable, "-c", STEPS, str(seconds)]
        said = subprocess.run(words, env=own, text=True, capture_output=True, check=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert int(said.stdout) == more


def test_a_session_has_its_own_number(tmp_path: Path) -> None:
    def saved_by(session: steep.TrainingSession) -> int:
        session.save_checkpoint(tmp_path / "run")
        number: int = json.loads((tmp_path / "run" / "manifest.json").read_text())["threads"]
        return number

    first = steep.TrainingSession(model(), loss="mse")
    before = saved_by(first)
    assert saved_by(steep.TrainingSession(model(), loss="mse", threads=7)) == 7
    assert saved_by(first) == before


@pytest.mark.parametrize("number", [-1, 1025])
def test_numbers_that_are_refused(number: int) -> None:
    def of_inference() -> Any:
        options = steep.SessionOptions()
        options.intra_op_num_threads = number
        return steep.InferenceSession(model(), options)

    for make in (
        lambda: steep.TrainingSession(model(), loss="mse", threads=number),
        lambda: steep.GradientSession(model(), wrt=["w"], threads=number),
        of_inference,
    ):
        with pytest.raises(steep.ModelError, match="1 to 1024") as caught:
            make()
        assert caught.value.received == str(number)
    steep.TrainingSession(model(), loss="mse").step(
        np.ones((1, 2), np.float32), np.ones((1, 2), np.float32)
    )

"""Sessions with parallel="gloo" and "mpi", in scripts that launchers start, without PyTorch."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from steep_program import built

import steep

PACKAGE = Path(steep.__file__).parent
STEPS = 4
ROWS = 12

SCRIPT = """
import os, signal, sys
import numpy as np
import steep

way, zero, work = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def say(*words):  # in one write, since the processes share a pipe
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


if work == "never" and os.environ["STEEP_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
try:
    session = steep.TrainingSession("m.onnx", loss="mse", lr=0.05, parallel=way, zero=zero)
except steep.PeerLostError as error:
    say(error.node, error.op, error.received)
    sys.exit()
rank = int(os.environ.get("STEEP_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
x, y = np.load("x.npy"), np.load("y.npy")
mine = slice(0, 9) if rank == 0 else slice(9, None)
if work == "train":
    other = steep.TrainingSession("m.onnx", loss="mse", lr=0.05, parallel=way)  # the same peers
    for i in range(4):
        session.step(x[mine], y[mine])
        other.step(x[mine], y[mine])
    session.save_checkpoint("run")
    session.export_onnx("trained.onnx")
    other.export_onnx("other.onnx")
elif work == "fail":
    try:
        session.step(x[mine, : 2 - rank], y[mine])
    except steep.ShapeError as error:
        say(rank, error.node if rank == 0 else "own")
    session.step(x[mine], y[mine])
    say(rank, session.step_count)
elif work == "die":
    session.step(x[mine], y[mine])
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        session.step(x[mine], y[mine])
    except steep.ProviderError as error:
        say(error.node, error.received)
assert "torch" not in sys.modules
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[n,2] x) => (float[n,1] y)
        <float[2,3] w = {0.5, -0.25, 1, 0.75, 2, -1}, float[3,1] v = {1, -0.5, 0.25}>
        { h = MatMul(x, w) t = Tanh(h) y = MatMul(t, v) }"""
    )
    onnx.save(made, tmp_path / "m.onnx")
    random = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", random.normal(size=(ROWS, 2)).astype(np.float32))
    np.save(tmp_path / "y.npy", random.normal(size=(ROWS, 1)).astype(np.float32))
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    return tmp_path


def environment():
    """That of no launcher: tests may themselves run under one."""
    launchers = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "STEEP_")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(launchers) and name not in ("WORLD_SIZE", "RANK")
    }


def start(way, zero, work):
    """Run the script in two processes; return exit code and output."""
    if not (PACKAGE / f"libsteep_comm_{way}.so").exists():
        pytest.skip(f"{way} was not found when Steep was built")
    if way == "mpi":
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed (openmpi-bin)")
        launcher = ["mpirun", "-n", "2", "--oversubscribe", "--allow-run-as-root"]
    else:
        launcher = [built("steep"), "launch", "-n", "2", "--"]
    return run([*launcher, sys.executable, "script.py", way, str(zero), work])


def run(command):
    """Return exit code and output."""
    done = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        env=environment(),
    )
    return done.returncode, done.stdout


def weights(session):
    return {name: np.array(value) for name, value in session.weights().items()}


def assert_same(found, expected):
    for name, value in weights(expected).items():
        np.testing.assert_allclose(weights(found)[name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("way", ["gloo", "mpi"])
def test_a_script_equals_one_process(folder, way, zero):
    code, text = start(way, zero, "train")
    assert code == 0, text
    expected = steep.TrainingSession("m.onnx", loss="mse", lr=0.05)
    x, y = np.load("x.npy"), np.load("y.npy")
    for _ in range(STEPS):
        expected.step(x, y)
    for file in ("trained.onnx", "other.onnx"):
        assert_same(steep.TrainingSession(file, loss="mse"), expected)
    resumed = steep.TrainingSession("m.onnx", loss="mse", lr=0.05)
    resumed.load_checkpoint("run")
    assert resumed.step_count == STEPS
    for name, value in expected.optimizer_state().items():
        np.testing.assert_allclose(np.asarray(resumed.optimizer_state()[name]), value, atol=1e-6)


def test_all_ranks_are_told_of_an_error_before_the_step(folder):
    code, text = start("gloo", 0, "fail")
    assert code == 0, text
    assert sorted(text.splitlines()) == ["0 1", "0 rank 1", "1 1", "1 own"]


def test_a_killed_rank_is_named(folder):
    code, text = start("gloo", 0, "die")
    assert code == 128 + signal.SIGKILL
    assert "rank 1 " in text.splitlines()[0] or "rank 1 was" in text, text
    assert any(line.startswith("rank 1 rank 1") for line in text.splitlines()), text


def test_a_rank_that_is_killed_before_it_connects_is_named(folder):
    code, text = start("gloo", 0, "never")
    assert code == 128 + signal.SIGKILL
    assert "rank 1 connect rank 1 was killed" in text.splitlines(), text


def test_launch_says_what_it_cannot_start(folder):
    words = [built("steep"), "launch", "-n", "2", "--"]
    code, text = run([*words, "no such program"])
    assert code != 0
    assert text.count("steep: no such program cannot be started") == 1
    code, text = run(words)
    assert code != 0
    assert "COMMAND is required" in text


def test_an_interrupt_ends_the_wait_for_a_rank_that_never_starts(folder):
    if not (PACKAGE / "libsteep_comm_gloo.so").exists():
        pytest.skip("gloo was not found when Steep was built")
    (folder / "rendezvous").mkdir()
    variables = {
        "STEEP_RANK": "0",
        "STEEP_SIZE": "2",
        "STEEP_RENDEZVOUS": str(folder / "rendezvous"),
    }
    command = "import steep; print('waits', flush=True); steep._steep.connect('gloo')"
    with subprocess.Popen(
        [sys.executable, "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | variables,
    ) as process:
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=20)  # STEEP_CONNECT_SECONDS is 60
    assert text.rstrip().endswith("KeyboardInterrupt"), text


def test_gloo_without_a_launcher(monkeypatch):
    for name in ("STEEP_RANK", "STEEP_SIZE", "STEEP_RENDEZVOUS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(steep.ProviderError) as raised:
        steep._steep.connect("gloo")
    assert "steep launch" in raised.value.remedy or "libgloo" in raised.value.remedy

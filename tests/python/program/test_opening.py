"""Processes of a training that are lost while they start, or while they connect."""

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from steep_program import built

pytestmark = pytest.mark.skipif(
    not Path(built("steep")).with_name("libsteep_comm_gloo.so").exists(),
    reason="gloo was not found when Steep was built (libgloo-dev)",
)

MODEL = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n,2] x) => (float[n,1] y) <float[2,1] w = {0.5, -0.25}> { y = MatMul(x, w) }"""
TRAIN = "exec $STEEP train m.onnx --data t.npz --loss mse --lr 0.01 --batch 4 --parallel gloo"

# What a process has done by the time when it begins to connect: its file is locked.
BEGINS = """exec python3 -c '
import fcntl, os, signal, struct
path = os.environ["STEEP_RENDEZVOUS"] + "/alive.1"
file = open(path + ".new", "wb", buffering=0)
fcntl.flock(file, fcntl.LOCK_EX)
file.write(struct.pack("=QQ", 1, 0))
os.rename(path + ".new", path)
os.kill(os.getpid(), signal.SIGSTOP)'"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    x = np.ones((8, 2), np.float32)
    np.savez(tmp_path / "t.npz", x=x, label=x[:, :1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("STEEP", built("steep"))
    return tmp_path


def launch(first: str, **variables: str) -> tuple[int, str, float]:
    """Rank 1 runs `first` before it trains. The exit code, the output and the seconds."""
    begin = time.monotonic()
    script = f'if [ "$STEEP_RANK" = 1 ]; then {first}; fi; {TRAIN}'
    process = subprocess.run(
        [built("steep"), "launch", "-n", "3", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | variables,
    )
    return process.returncode, process.stdout + process.stderr, time.monotonic() - begin


@pytest.mark.parametrize(
    ("fault", "how", "code"),
    [
        ("kill -STOP $$", "did not answer for 7 s", 4),
        (BEGINS, "did not answer for 7 s", 4),
        ("kill -KILL $$", "was killed", 128 + 9),
        ("exit 9", "ended with exit code 9", 9),
    ],
    ids=["stopped before it connects", "stopped as it connects", "killed", "failed"],
)
def test_a_process_that_is_lost_while_others_connect_is_named(
    folder: Path, fault: str, how: str, code: int
) -> None:
    ended, text, seconds = launch(fault)
    assert ended == code, text
    assert f"rank 1 {how}" in text
    assert text.count("Another process of this training ended or cannot be reached") == 1
    assert "op:       connect" in text
    assert "was ended by signal" not in text.replace("rank 1 was ended by signal 9 ", "")
    assert seconds < (12 if "answer" in how else 5)  # with what it takes to start and end


def test_a_process_may_start_late(folder: Path) -> None:
    code, text, _ = launch("sleep 9")
    assert code == 0, text


def test_one_that_never_starts_is_named(folder: Path) -> None:
    code, text, _ = launch("sleep 5; exit 0", STEEP_CONNECT_SECONDS="2")
    assert code == 4
    assert "no start of rank 1 in 2 s" in text
    code, text, _ = launch(":", STEEP_CONNECT_SECONDS="soon")
    assert code == 3 and "STEEP_CONNECT_SECONDS" in text


def test_a_folder_that_takes_no_bytes_is_named(folder: Path) -> None:
    code, text, seconds = launch("trap '' XFSZ; ulimit -f 0")
    assert code == 4
    assert "The folder in which the processes meet cannot be used" in text
    assert "alive.1" in text and os.strerror(27) in text
    assert "rank 1 ended" in text
    assert seconds < 5


def test_a_folder_is_for_one_training(folder: Path) -> None:
    (folder / "meeting").mkdir()
    variables = {"STEEP_SIZE": "2", "STEEP_RENDEZVOUS": "meeting"}
    for again in (False, True):
        each = [
            subprocess.Popen(
                ["sh", "-c", TRAIN],
                env=os.environ | variables | {"STEEP_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        for process in each:
            text = process.communicate(timeout=60)[0]
            assert process.returncode == (4 if again else 0), text
            assert ("a file of another training" in text) == again

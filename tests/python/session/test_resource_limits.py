"""Small files that ask for too much are refused soon, cheaply and by name; Ctrl-C ends the rest."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
from checkout import ROOT
from steep_program import built

import steep

_spec = importlib.util.spec_from_file_location("bombs", ROOT / "tests/attack/bombs.py")
assert _spec is not None and _spec.loader is not None
bombs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bombs)

TYPED = ("OutOfMemoryError", "ModelError", "ShapeError", "DataError", "ProviderError")


@functools.cache
def results() -> dict[str, dict]:
    """Every bomb explodes in a child of one process that has no thread of OpenMP yet."""
    done = subprocess.run(
        [sys.executable, bombs.__file__], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("name", bombs.BOMBS)
def test_a_bomb_is_refused(name):
    result = results()[name]
    assert result["result"].split(":")[0] in TYPED, result
    assert result["cpu"] <= 5, result
    assert result["megabytes"] <= 512, result


@pytest.mark.parametrize("name", bombs.ENDLESS)
def test_what_takes_long_can_be_interrupted(name):
    result = results()[name]
    assert result["result"].startswith("KeyboardInterrupt"), result
    assert result["seconds"] < 5, result


MODEL = bombs.text_model(
    "g (float[n, 10] x) => (float[n, 2] y) <float[10, 2] w = {" + "1," * 19 + "1}> "
    "{ y = MatMul (x, w) }"
)


def test_check_reports_shapes_beyond_the_budget(tmp_path):
    (tmp_path / "linear.onnx").write_bytes(MODEL)
    program = built("steep")
    command = [program, "check", tmp_path / "linear.onnx", "--loss", "mse"]
    command += ["--shape", "x=10000000000,10"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done
    assert "float32[10000000000, 2]" in done.stdout
    assert "74.5 GiB" in done.stdout
    assert "max-bytes" in done.stdout
    # With the budget it asks for, the step is planned: some primitives for millions of blocks.
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh", *command, "--max-bytes", "4T"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    assert "can be trained" in done.stdout


def test_the_budget_of_a_step():
    x, y = np.ones((1000, 10), np.float32), np.ones((1000, 2), np.float32)
    steep.TrainingSession(MODEL, loss="mse").step(x, y)
    session = steep.TrainingSession(MODEL, loss="mse", limits=steep.Limits(max_bytes=20_000))
    before = session.weights()["w"].numpy().copy()
    with pytest.raises(steep.OutOfMemoryError, match=r"at most 20000 bytes") as e:
        session.step(x, y)
    assert "float32[1000, 10]" in str(e.value)
    assert "max_bytes" in e.value.remedy
    np.testing.assert_array_equal(session.weights()["w"].numpy(), before)
    session.step(x[:10], y[:10])


def test_limits_of_sessions():
    with pytest.raises(steep.ModelError, match="max_nodes"):
        steep.grad(MODEL, ["x"], limits=steep.Limits(max_nodes=0))
    options = steep.SessionOptions()
    options.limits = steep.Limits(max_bytes=10)
    with pytest.raises(steep.ModelError, match="max_bytes"):
        steep.InferenceSession(MODEL, options)
    (obstacle,) = steep.check(MODEL, loss="mse", limits=steep.Limits(max_bytes=10))
    assert "max_bytes" in obstacle.remedy
    assert steep.Limits().max_bytes > 1 << 28


def test_the_environment_sets_the_default():
    code = "import steep; print(steep.Limits().max_bytes)"
    run = functools.partial(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert run(env={"STEEP_MAX_BYTES": "3M"}).stdout.strip() == str(3 << 20)
    for word in ("much", "8Q", "0", "-1", "inf", ""):
        bad = run(env={"STEEP_MAX_BYTES": word})
        said = bad.stderr.splitlines()
        first = "steep.errors.DataError: STEEP_MAX_BYTES cannot be read."
        assert first in said, bad.stderr
        assert (f"  received: {word}" in said) == (word != "")
        assert "Correct the variable" in said[-1]


def test_a_handler_may_raise_what_it_likes():
    code = """
import signal, sys
sys.path.insert(0, sys.argv[1])
import bombs
class Enough(Exception): pass
def handler(*_): raise Enough("by the handler")
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.5)
try:
    bombs.run_by_name("loop")
except Enough as e:
    print("caught", e)
"""
    root = str(ROOT / "tests/attack")
    done = subprocess.run(
        [sys.executable, "-c", code, root], capture_output=True, text=True, check=False
    )
    assert "caught by the handler" in done.stdout, done

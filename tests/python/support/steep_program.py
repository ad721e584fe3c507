"""The `steep` program as a child process, and what it trains on."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from checkout import ROOT

EXAMPLES = ROOT / "examples"
sys.path[:0] = [str(EXAMPLES / "linear_regression")]

import make_model as linear  # noqa: E402, F401


def built(name: str) -> str:
    """Path of a program that `make build` made."""
    program = ROOT / "build" / "release" / name
    assert os.access(program, os.X_OK), f"{name} is not built: run `make build`"
    return str(program)


def output_of(*command: object, **options: Any) -> str:
    """Runs a command that must succeed; returns stdout and stderr together."""
    process = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        **options,
    )
    assert process.returncode == 0, process.stdout
    return process.stdout


def steep(*words: object, code: int | None = 0) -> str:
    """Runs the program; returns stdout and stderr together. A `code` of None: any but 0."""
    process = subprocess.run(
        [built("steep"), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == code or (code is None and process.returncode > 0), process.stdout
    return process.stdout


def train(model: Path, *words: object, code: int = 0) -> str:
    data = model.with_suffix(".npz")
    optimizer = () if "--optimizer" in words else ("--optimizer", "sgd", "--lr", 0.1)
    return steep("train", model, "--data", data, "--loss", "mse", *optimizer, *words, code=code)


def weights(path: Path) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}

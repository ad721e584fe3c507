"""The whole library for ARM, without oneDNN, in an emulator: the program trains as it does here."""

import sys
from pathlib import Path

import numpy as np
import pytest
from arm64_build import EMULATOR
from checkout import ROOT
from steep_program import EXAMPLES, built, output_of, weights

pytestmark = pytest.mark.arm64_whole
WHOLE = ROOT / "build" / "arm64-whole"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("digits")
    output_of(sys.executable, EXAMPLES / "digits_mlp" / "make_model.py", to)
    return to


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.1), ("adamw", 0.001)])
def test_digits_have_the_weights_that_they_have_here(
    folder: Path, tmp_path: Path, optimizer: str, lr: float
) -> None:
    trained = {}
    for name, program in {"here": [built("steep")], "arm": [*EMULATOR, WHOLE / "steep"]}.items():
        to = tmp_path / f"{name}.onnx"
        output_of(
            *program,
            "train",
            folder / "digits.onnx",
            *("--data", folder / "digits_train.npz", "--loss", "softmax_cross_entropy"),
            *("--optimizer", optimizer, "--lr", lr, "--epochs", 3, "--out", to),
        )
        trained[name] = weights(to)
    # Adam divides gradients by their size, so that rounding has a say in those near zero.
    atol = 1e-5
    before = weights(folder / "digits.onnx")
    assert trained["arm"].keys() == trained["here"].keys() == before.keys()
    for name, mine in trained["arm"].items():
        np.testing.assert_allclose(mine, trained["here"][name], rtol=1e-5, atol=atol, err_msg=name)
        assert np.abs(mine - before[name]).max() > 50 * atol, name

"""The runtime for browsers, in node: the example, and the wrapper of the C API."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from steep_program import EXAMPLES, output_of
from wasm_build import WASM, needs_wasm

import steep

pytestmark = pytest.mark.wasm
DIGITS = EXAMPLES / "digits_wasm"
ROWS = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of the example, and its data."""
    needs_wasm()
    to = tmp_path_factory.mktemp("digits")
    output_of(sys.executable, DIGITS / "make_artifact.py", to)
    return to


def arrays_of(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    x = np.fromfile(folder / f"{name}_x.bin", np.float32).reshape(-1, 64)
    return x, np.fromfile(folder / f"{name}_label.bin", np.int64)


def test_digits_are_learnt_as_by_the_whole_library(folder: Path) -> None:
    said = output_of("node", DIGITS / "train.mjs", folder, 20)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.e-]+)", said)]
    accuracy = float(re.findall(r"test accuracy ([\d.]+)", said)[0])
    session = steep.TrainingSession(
        folder / "digits.onnx", loss="softmax_cross_entropy", optimizer="adam", lr=3e-3
    )
    x, label = arrays_of(folder, "train")
    expected = [
        np.mean(
            [
                session.step(x[row : row + ROWS], label[row : row + ROWS]).loss
                for row in range(0, len(x), ROWS)
            ]
        )
        for _ in range(20)
    ]
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    tested, digit = arrays_of(folder, "test")
    right = np.asarray(session.eval(tested).outputs[0]).argmax(1) == digit
    assert accuracy == pytest.approx(right.mean(), abs=1e-5) and accuracy > 0.95


SCRIPT = """
import { readFileSync } from "node:fs";
const [wrapper, folder] = process.argv.slice(1);
const { load, array } = await import(wrapper);
const library = await load();
const bytes = readFileSync(`${folder}/digits.steep`);
const said = {};
const refused = (name, work) => {
  try { work(); said[name] = "nothing"; }
  catch (error) { said[name] = [error.name, error.message, error.remedy]; }
};
refused("damaged", () => library.open(bytes.subarray(0, bytes.length - 1)));
const x = new Float32Array(64 * 64).fill(0.5), label = new BigInt64Array(64);
const session = library.open(bytes);
refused("rows", () => session.step([array(x.subarray(0, 128), [2, 64]), label.subarray(0, 2)]));
refused("label", () => session.step([array(x, [64, 64]), new BigInt64Array(64).fill(10n)]));
refused("memory", () => library.open(bytes, 1000));
refused("kind", () => session.step([[1, 2], label]));
said.steps = session.stepCount;
session.lr = 0.5;
said.lr = session.lr;
const named = { label, x: array(x, [64, 64]) };
said.first = session.step(named);
const again = library.open(session.save());
said.next = [session.step(named), again.step(named)];
const find = () => session.weights().find(({ name }) => name === "fc0.weight");
const weight = find();
said.weight = [weight.name, weight.dims, weight.data.length];
session.setWeights({ [weight.name]: array(weight.data.fill(2), weight.dims) });
said.set = find().data.every((value) => value === 2);
session.free();
refused("freed", () => session.step(named));
said.version = library.version;
console.log(JSON.stringify(said));
"""


def test_the_wrapper_trains_saves_and_refuses(folder: Path) -> None:
    wrapper = WASM / "steep_artifact.mjs"
    said = json.loads(output_of("node", "--input-type=module", "-e", SCRIPT, wrapper, folder))
    kinds = {name: said[name][0] for name in ("damaged", "rows", "label", "memory", "freed")}
    assert kinds == {
        "damaged": "CheckpointError",
        "rows": "ShapeError",
        "label": "DataError",
        "memory": "OutOfMemoryError",
        "freed": "ArgumentError",
    }
    assert said["kind"][0] == "TypeError"
    assert "freed" in said["freed"][1] and said["damaged"][2]
    assert said["steps"] == 0 and said["lr"] == 0.5
    assert said["first"]["step"] == 1 and said["first"]["lr"] == 0.5
    assert said["next"][0] == said["next"][1] and said["next"][0]["step"] == 2
    assert said["weight"] == ["fc0.weight", [64, 64], 4096] and said["set"]
    assert said["version"] == steep.__version__

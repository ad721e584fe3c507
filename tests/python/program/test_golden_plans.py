"""The plans of six small training steps, as text: a change of the compiler shows in a diff.

They are made for one thread and the scalar instruction set, so that every machine plans the same.

`pytest tests/python/program/test_golden_plans.py --rewrite-golden` writes tests/golden/plans anew.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from checkout import ROOT
from onnx import numpy_helper
from steep_program import built

FOLDER = ROOT / "tests" / "golden" / "plans"

# Text of the graph, shapes of its weights, options of `steep dump`.
MODELS = {
    "mlp": (
        """(float[n, 8] x) => (float[n, 4] y) {
            h = Gemm(x, w1, b1)
            r = Relu(h)
            y = Gemm(r, w2, b2)
        }""",
        {"w1": (8, 16), "b1": (16,), "w2": (16, 4), "b2": (4,)},
        "--loss softmax_cross_entropy --optimizer adam --shape x=6,8",
    ),
    "convolution": (
        """(float[n, 3, 8, 8] x) => (float[n, 8] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, kernel, bias)
            r = Relu(c)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            g = GlobalAveragePool(p)
            y = Flatten(g)
        }""",
        {"kernel": (8, 3, 3, 3), "bias": (8,)},
        "--loss mse --optimizer sgd --shape x=2,3,8,8 --shape label=2,8",
    ),
    "attention": (
        """(float[n, 6, 8] x) => (float[n, 6, 8] y) {
            q = MatMul(x, wq)
            k = MatMul(x, wk)
            v = MatMul(x, wv)
            t = Transpose <perm = [0, 2, 1]> (k)
            s = MatMul(q, t)
            a = Softmax <axis = -1> (s)
            o = MatMul(a, v)
            y = Add(x, o)
        }""",
        {"wq": (8, 8), "wk": (8, 8), "wv": (8, 8)},
        "--loss mse --optimizer adamw --shape x=2,6,8",
    ),
    "normalisation": (
        """(float[n, 16] x) => (float[n, 16] y) {
            c = LayerNormalization <axis = -1> (x, scale, shift)
            g = Gelu(c)
            y = MatMul(g, w)
        }""",
        {"scale": (16,), "shift": (16,), "w": (16, 16)},
        "--loss mse --optimizer lamb --shape x=4,16",
    ),
    "recurrent": (
        """(float[5, n, 4] x) => (float[5, 1, n, 6] y) {
            y, last, cell = LSTM <hidden_size = 6> (x, w, r, b)
        }""",
        {"w": (1, 24, 4), "r": (1, 24, 6), "b": (1, 48)},
        "--loss mse --optimizer sgd --shape x=5,3,4",
    ),
    "embedding": (
        """(int64[n, 7] x) => (float[n, 7, 12] y) {
            e = Gather(table, x)
            d = Dropout(e, ratio, training)
            y = MatMul(d, w)
        }""",
        {"table": (12, 8), "w": (8, 12)},
        "--loss softmax_cross_entropy --optimizer adagrad --shape x=2,7",
    ),
}


def write_model(path: Path, text: str, weights: dict[str, tuple[int, ...]]) -> None:
    header = '<ir_version: 10, opset_import: ["": 20]> golden '
    model = onnx.parser.parse_model(header + text)
    values = {n: np.linspace(-1, 1, int(np.prod(s)), dtype="f4") for n, s in weights.items()}
    arrays = [numpy_helper.from_array(v.reshape(weights[n]), n) for n, v in values.items()]
    if "ratio" in text:
        arrays.append(numpy_helper.from_array(np.float32(0.25), "ratio"))
        arrays.append(numpy_helper.from_array(np.bool_(True), "training"))
    model.graph.initializer.extend(arrays)
    onnx.save(model, path)


def dump(folder: Path, name: str, **environment: str) -> str:
    text, weights, options = MODELS[name]
    path = folder / f"{name}.onnx"
    write_model(path, text, weights)
    pinned = {"OMP_NUM_THREADS": "1", "STEEP_MAX_ISA": "scalar", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    return subprocess.run(
        [built("steep"), "dump", path, *options.split()],
        env={**os.environ, **pinned, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("name", MODELS)
def test_the_plan_is_as_it_was(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    plan, golden = dump(tmp_path, name), FOLDER / f"{name}.txt"
    if pytestconfig.getoption("--rewrite-golden"):
        golden.write_text(plan)
    assert plan == golden.read_text()


def test_every_golden_plan_has_its_model() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*MODELS}

"""Wrong values of Steep's environment variables: name, value, what is expected, remedy."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from steep_program import built, linear

import steep

PRODUCT = """
import numpy as np, onnx.parser, steep
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (bfloat16[256,256] x) => (bfloat16[256,256] y)'
    '{ y = MatMul(x, x) }')
import ml_dtypes
steep.InferenceSession(model).run(None, {"x": np.ones((256, 256), ml_dtypes.bfloat16)})
"""
SESSION = "import steep; steep.TrainingSession('linear.onnx', loss='mse').step({}, {})"
MODULE = """
import steep, torch
steep.ORTModule(torch.nn.Linear(3, 2))(torch.ones(2, 3))
"""
CODE = {
    "STEEP_LOGS": ("import steep", "graphs, breaks"),
    "STEEP_MAX_BYTES": ("import steep", "a number of bytes"),
    "STEEP_MAX_ISA": (PRODUCT, "avx512, avx2, sse4 or scalar"),
    "STEEP_PRODUCTS": (PRODUCT, "measured, native or widened"),
    "STEEP_HOST_PROVIDER": (PRODUCT, "a shared library with the symbol"),
    "STEEP_ALONE": (SESSION, "1, if each process"),
    "STEEP_MALLOC": ("import steep", "system"),
    "STEEP_VERIFY": (MODULE, "0 or 1"),
}


def environment(**variables: str) -> dict[str, str]:
    path = str(Path(steep.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": path, "STEEP_CACHE": "off", **variables}


@pytest.mark.parametrize("variable", CODE)
def test_wrong_value(variable: str, tmp_path: Path) -> None:
    onnx.save(linear.linear_model(3), tmp_path / "linear.onnx")
    code, expected = CODE[variable]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(**{variable: "abc"}),
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr[done.stderr.rindex("steep.errors.") :]
    assert variable in said and "abc" in said, said
    assert f"  expected: {expected}" in said
    assert "  remedy:   " in said


def test_wrong_value_in_the_program(tmp_path: Path) -> None:
    onnx.save(linear.linear_model(3), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **linear.linear_data(8, 3))
    words = ("train", "m.onnx", "--data", "d.npz", "--loss", "mse")
    for variable, expected in (("STEEP_ALONE", "1, if"), ("STEEP_MAX_ISA", "")):
        done = subprocess.run(
            [built("steep"), *words],
            cwd=tmp_path,
            env=environment(**{variable: "abc"}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode > 0
        for part in (f"name:     {variable}", f"expected: {expected}", "received: abc", "remedy:"):
            assert part in done.stderr, done.stderr

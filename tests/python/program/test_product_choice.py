"""Which product computes bfloat16: what is measured, kept, and decided by STEEP_PRODUCTS."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper
from steep_program import built


def run(*words: object, code: int = 0, **variables: object) -> str:
    """Runs the program with these variables, of which None removes one."""
    env = {**os.environ, **{k: str(v) for k, v in variables.items()}}
    for name in [k for k, v in variables.items() if v is None]:
        del env[name]
    process = subprocess.run(
        [built("steep"), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        env=env,
    )
    assert process.returncode == code, process.stdout
    return process.stdout


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A layer that is large enough for a choice."""
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        layer (float[n, 256] x) => (float[n, 128] y) { y = MatMul(x, w) }""")
    weight = np.zeros((256, 128), np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "layer.onnx"
    onnx.save(made, path)
    return path


def products(model: Path, **variables: object) -> set[str]:
    """The kernels of the plan's products in bfloat16."""
    text = run(
        *("plan", model, "--loss", "mse", "--precision", "bf16"),
        *("--shape", "x=64,256", "--shape", "label=64,128"),
        STEEP_LOGS="plan",
        **variables,
    )
    return set(re.findall(r"= steep\.MatMul\[(\w+)\]", text))


def measures() -> bool:
    return "nothing is measured" not in run("bench-kernels", STEEP_CACHE="off")


def test_the_variable_decides(model: Path) -> None:
    assert products(model, STEEP_PRODUCTS="widened") == {"widened"}
    native = products(model, STEEP_PRODUCTS="native")
    assert native in ({"onednn"}, {"widened"})  # {"widened"}: no bfloat16 instructions
    said = run("bench-kernels", STEEP_CACHE="off", STEEP_PRODUCTS="fastest", code=4)
    assert "STEEP_PRODUCTS" in said and "native or widened" in said


def test_a_measurement_is_made_once(tmp_path: Path) -> None:
    if not measures():
        pytest.skip("this library has no products to choose from")
    folder = tmp_path / "new" / "cache"
    table = run("bench-kernels", STEEP_CACHE=folder, STEEP_PRODUCTS=None)
    (file,) = folder.iterdir()
    assert (file.stat().st_mode & 0o077) in (0, 0o44)
    assert all(name in table for name in ("a bT", "vocabulary", "convolution", "widened"))
    kept = file.read_bytes()
    assert run("bench-kernels", STEEP_CACHE=folder, STEEP_PRODUCTS=None) == table
    assert file.read_bytes() == kept


def test_plans_follow_what_is_kept(model: Path, tmp_path: Path) -> None:
    if not measures() or products(model, STEEP_PRODUCTS="native") == {"widened"}:
        pytest.skip("there is nothing to choose")
    run("bench-kernels", STEEP_CACHE=tmp_path / "cache", STEEP_PRODUCTS=None)
    (file,) = (tmp_path / "cache").iterdir()
    magic, machine, *_ = file.read_text().splitlines()
    for speeds, chosen in (("200 300 300 1", "widened"), ("290 300 300 1", "onednn")):
        file.write_text("\n".join([magic, machine, *[speeds] * 5]) + "\n")
        plans = products(model, STEEP_CACHE=tmp_path / "cache", STEEP_PRODUCTS=None)
        assert plans == {chosen}


@pytest.mark.parametrize(
    "damage",
    [
        "other machine",
        *(pytest.param(d, marks=pytest.mark.matrix) for d in ("", "steep products 1\n", "\0" * 64)),
    ],
)
def test_a_damaged_file_is_written_again(tmp_path: Path, damage: str) -> None:
    if not measures():
        pytest.skip("this library has no products to choose from")
    run("bench-kernels", STEEP_CACHE=tmp_path, STEEP_PRODUCTS=None)
    (file,) = tmp_path.iterdir()
    good = file.read_text().splitlines()
    if damage == "other machine":
        damage = "\n".join([good[0], "another processor", *good[2:]])
    file.write_text(damage)
    run("bench-kernels", STEEP_CACHE=tmp_path, STEEP_PRODUCTS=None)
    assert file.read_text().splitlines()[:2] == good[:2]
    assert len(file.read_text().splitlines()) == len(good)


def test_a_file_that_others_may_write_is_not_read(tmp_path: Path, model: Path) -> None:
    if not measures() or products(model, STEEP_PRODUCTS="native") == {"widened"}:
        pytest.skip("there is nothing to choose")
    run("bench-kernels", STEEP_CACHE=tmp_path / "cache", STEEP_PRODUCTS=None)
    (file,) = (tmp_path / "cache").iterdir()
    magic, machine, *_ = file.read_text().splitlines()
    forged = "\n".join([magic, machine, *["1 900 900 1"] * 5]) + "\n"
    file.write_text(forged)
    file.chmod(0o666)
    table = run("bench-kernels", STEEP_CACHE=tmp_path / "cache", STEEP_PRODUCTS=None)
    assert "900" not in table.partition("GFLOP/s")[2]


def test_no_folder_ends_no_run(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("/proc/no/folder", tmp_path / "file" / "x"):
        assert products(model, STEEP_CACHE=folder, STEEP_PRODUCTS=None)

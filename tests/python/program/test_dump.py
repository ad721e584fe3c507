"""`steep dump`: the passes one by one, passes that are switched off, and a plan as a page."""

from pathlib import Path

import onnx
import onnx.parser
import pytest
from steep_program import steep

SHAPES = ("--shape", "x=6,4")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = """<ir_version: 10, opset_import: ["": 20]> net (float[n, 4] x) => (float[n, 3] y)
    <float[4, 3] weight = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
        product = MatMul(x, weight)
        slope = Sigmoid(product)
        silu = Mul(product, slope)
        y = Tanh(silu)
    }"""
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_each_pass_is_shown(model: Path) -> None:
    plain, text = steep("dump", model, *SHAPES), steep("dump", model, *SHAPES, "--passes")
    assert "steep.Fused" in plain and "# fuse_elementwise" not in plain
    assert text.startswith("# specialised\n")
    before, _, after = text.partition("# fuse_elementwise\n")
    assert "steep.Fused" not in before and "steep.Fused" in after


def test_a_pass_is_switched_off(model: Path) -> None:
    words = ("dump", model, *SHAPES, "--disable-pass", "fuse_elementwise")
    assert "steep.Fused" not in steep(*words)
    assert "# fuse_elementwise: switched off" in steep(*words, "--passes")
    assert "did you mean 'fuse_elementwise'" in steep(*words[:-1], "fuse_elementwize", code=None)


def test_a_page(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    assert steep("dump", model, *SHAPES, "--html", path) == f"wrote {path}\n"
    page = path.read_text()
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert "steep.Fused" in page and "switched off" not in page
    steep("dump", model, *SHAPES, "--html", path, "--disable-pass", "fuse_elementwise")
    page = path.read_text()
    assert "steep.Fused" not in page and "<rect" in page  # of the values that are not fused


def test_a_page_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "plan.html"
    assert str(path.parent) in steep("dump", model, *SHAPES, "--html", path, code=None)
    assert not path.exists()

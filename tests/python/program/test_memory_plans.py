"""``steep plan`` and ``--memory-limit``: what is kept, and what is computed again."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from limited_models import falls, layers
from steep_program import steep

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    proto, (x, y) = layers()
    onnx.save(proto, path)
    np.savez(tmp_path / "net.npz", x=np.tile(x, (2, 1)), label=np.tile(y, (2, 1)))
    return path


def planned(model: Path, *words: object, code: int = 0) -> str:
    return steep("plan", model, "--loss", "mse", "--shape", "x=256,48", *words, code=code)


def reports(model: Path, *words: object) -> tuple[list[Any], list[Any], Any]:
    """Nodes, plans and the result."""
    rows = [json.loads(line) for line in planned(model, "--json", *words).splitlines()]
    nodes = [r for r in rows if r["report"] == "node"]
    plans = [r for r in rows if r["report"] == "plan"]
    (result,) = [r for r in rows if r["report"] == "planned"]
    assert len(rows) == len(nodes) + len(plans) + 1
    return nodes, plans, result


def test_the_table(model: Path) -> None:
    lines = planned(model).splitlines()
    assert lines[0].split() == ["node", "op", "bytes", "to", "compute", "in", "backward"]
    rows = lines[1 : lines.index("")]
    assert {f"product{i}" for i in range(6)} <= {row.split()[0] for row in rows}
    assert all(row.endswith("not computed again") for row in rows)
    assert any(line.startswith("planned peak ") for line in lines)
    assert lines[-1].startswith("step planned: ")


def test_a_limit_chooses_nodes(model: Path) -> None:
    _, plans, free = reports(model)
    assert free["limit"] == 0 and free["planned"] == free["plain"]
    least = plans[-1]["bytes"]
    assert free["least"]["bytes"] == least < free["plain"]["bytes"]
    assert falls([p["bytes"] for p in plans]) and falls([-p["ms"] for p in plans])
    nodes, _, limited = reports(model, "--memory-limit", least)
    assert limited["planned"]["bytes"] == limited["limit"] == least
    assert any(n["again"] for n in nodes) and not all(n["again"] for n in nodes)
    text = planned(model, "--memory-limit", least)
    (peak,) = re.findall(r"planned peak .*; (\d+) of (\d+) nodes are computed again", text)
    assert (int(peak[0]), int(peak[1])) == (sum(n["again"] for n in nodes), len(nodes))
    assert f"within the memory limit of {least} bytes" in text
    assert reports(model, "--memory-limit", "least")[2]["planned"]["bytes"] == least


def test_the_picture(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "memory.svg"
    assert planned(model, "--plot", path).endswith(f"wrote {path}\n")
    root = ElementTree.parse(path).getroot()
    assert root.find(f".//{SVG}polyline") is not None
    text = " ".join(t.text or "" for t in root.iter(f"{SVG}text"))
    assert "MiB at the peak" in text and "modelled ms" in text
    assert planned(model, "--plot", tmp_path / "memory.png", code=2)


def test_a_limit_below_the_least(model: Path) -> None:
    least = reports(model)[2]["least"]["bytes"]
    text = planned(model, "--memory-limit", least - 1, code=4)
    assert "No plan fits the memory limit" in text
    assert f"at least {least} bytes for" in text and f"at most {least - 1} bytes" in text
    assert "bytes (" not in text
    assert "a smaller batch" in text


@pytest.mark.parametrize("word", ["2 GB", "0", "-1", "1.5G", "most", ""])
def test_what_is_no_size(word: str, model: Path) -> None:
    for command in ("plan", "train", "lr-find"):
        data = () if command == "plan" else ("--data", model.with_suffix(".npz"))
        text = steep(command, model, "--loss", "mse", *data, f"--memory-limit={word}", code=2)
        assert "--memory-limit" in text


def test_a_shape_that_is_not_known(model: Path) -> None:
    assert "--shape x=" in steep("plan", model, "--loss", "mse", code=3)


# --- steep train ----------------------------------------------------------------------------------


def trained(model: Path, out: Path, *words: object, code: int = 0) -> str:
    return steep(
        *("train", model, "--data", model.with_suffix(".npz"), "--loss", "mse", "--batch", 256),
        *("--optimizer", "adam", "--epochs", 2, "--out", out, *words),
        code=code,
    )


def test_training_within_a_limit_gives_the_same_file(model: Path, tmp_path: Path) -> None:
    adam = ("--optimizer", "adam")
    result = reports(model, *adam)[2]
    least, plain = result["least"]["bytes"], result["plain"]["bytes"]
    assert least < plain
    wanted, found = tmp_path / "wanted.onnx", tmp_path / "found.onnx"
    assert "memory limit" not in trained(model, wanted)
    lines = trained(model, found, "--memory-limit", least).splitlines()
    assert found.read_bytes() == wanted.read_bytes()
    (said,) = [i for i, line in enumerate(lines) if line.startswith("step planned: ")]
    assert lines[said].endswith(f", within the memory limit of {least} bytes")
    assert said < next(i for i, line in enumerate(lines) if line.startswith("epoch"))
    text = trained(model, tmp_path / "none.onnx", "--memory-limit", least - 1, code=4)
    assert "No plan fits the memory limit" in text and f"at least {least} bytes for" in text
    assert not (tmp_path / "none.onnx").exists()

"""Losses as tables and pictures: lr-find, plot and the event files of TensorBoard."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from steep_program import linear, steep, train

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "linear.onnx"
    onnx.save(linear.linear_model(10), path)
    np.savez(tmp_path / "linear.npz", **linear.linear_data(256, 10))
    return path


def find(model: Path, *words: object, code: int = 0) -> str:
    data = ("--data", model.with_suffix(".npz"), "--loss", "mse", "--optimizer", "sgd")
    return steep("lr-find", model, *data, *words, code=code)


def reports(text: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def polylines(path: Path) -> list[list[tuple[float, float]]]:
    drawn = ElementTree.parse(path).getroot().iter(f"{SVG}polyline")
    return [
        [(float(a), float(b)) for a, b in (p.split(",") for p in line.get("points", "").split())]
        for line in drawn
    ]


# --- lr-find --------------------------------------------------------------------------------------


def test_the_rate_that_is_suggested_trains(model: Path, tmp_path: Path) -> None:
    before = hashlib.sha256(model.read_bytes()).digest()
    text = find(model, "--batch", 16, "--from", 1e-4, "--plot", tmp_path / "r.svg", "--json")
    steps = [r for r in reports(text) if r["report"] == "step"]
    (suggestion,) = [r["lr"] for r in reports(text) if r["report"] == "suggestion"]
    rates = np.array([s["lr"] for s in steps])
    np.testing.assert_allclose(rates[1:] / rates[:-1], (10 / 1e-4) ** (1 / 99))
    assert len(steps) < 100  # it diverged, and ended
    smoothed = np.array([s["smoothed"] for s in steps])
    assert suggestion == pytest.approx(rates[9 + int(smoothed[9:].argmin())] / 10)
    mean = weight = 0.0
    for step in steps:
        mean, weight = 0.9 * mean + 0.1 * step["loss"], 0.9 * weight + 0.1
        assert step["smoothed"] == pytest.approx(mean / weight)
    assert {p.name for p in tmp_path.iterdir()} == {"linear.onnx", "linear.npz", "r.svg"}
    assert hashlib.sha256(model.read_bytes()).digest() == before
    loss, means = polylines(tmp_path / "r.svg")
    assert len(loss) == len(means) == len(steps)
    xs = np.array([x for x, _ in loss])
    np.testing.assert_allclose(np.diff(xs), np.diff(xs).mean(), atol=0.2)  # logarithmic

    def last(lr: float) -> float:
        text = train(model, "--optimizer", "sgd", "--lr", lr, "--batch", 16, "--epochs", 2)
        return float(re.findall(r"epoch 2/2  loss (\S+)", text)[-1])

    assert last(suggestion) < last(1e-4) / 2


def test_the_table(model: Path) -> None:
    text = find(model, "--steps", 40, "--from", 1e-3, "--to", 0.3)
    rows = re.findall(r"^ +[\d.e-]+  +[\d.e+]+  +[\d.e+]+$", text, re.M)
    assert len(rows) == 20 and "suggestion: --lr " in text and "x from 'x'" in text


def test_no_rate_helps(model: Path) -> None:
    text = find(model, "--steps", 20, "--from", 1e-12, "--to", 1e-11, "--maximize")
    assert "no suggestion" in text


def test_words_of_lr_find(model: Path, tmp_path: Path) -> None:
    assert "above that of --from" in find(model, "--from", 1, "--to", 1, code=2)
    assert "from 20 to" in find(model, "--steps", 19, code=2)
    assert "ends in .svg" in find(model, "--plot", "r.png", code=2)
    assert "no option '--lr'" in find(model, "--lr", 1, code=2)
    missing = tmp_path / "none" / "r.svg"
    assert "none" in find(model, "--plot", missing, code=4)


# --- plot -----------------------------------------------------------------------------------------


def test_losses_of_runs(model: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "a" / "metrics.csv", tmp_path / "b<&>.csv"]
    runs[0].parent.mkdir()
    for run, lr in zip(runs, (0.01, 0.05), strict=True):
        train(model, "--optimizer", "sgd", "--lr", lr, "--metrics", run, "--epochs", 2)
    out = tmp_path / "o.svg"
    assert f"wrote {out}" in steep("plot", runs[0].parent, runs[1], "--out", out)
    one, two = polylines(out)
    assert len(one) == len(two) == 16
    losses = [float(row.split(",")[2]) for row in runs[0].read_text().splitlines()[1:]]
    ys = np.array([y for _, y in one])  # a linear axis, upside down
    scale = np.polyfit(losses, ys, 1)
    np.testing.assert_allclose(np.polyval(scale, losses), ys, atol=0.2)
    assert scale[0] < 0
    texts = [t.text for t in ElementTree.parse(out).getroot().iter(f"{SVG}text")]
    assert str(runs[1]) in texts and "step" in texts
    steep("plot", runs[0], "--out", out, "--smooth", 0.9, "--log")
    (smooth,) = polylines(out)
    assert np.ptp(np.diff([y for _, y in smooth])) < np.ptp(np.diff(ys))


def test_a_long_run_is_drawn_by_means(tmp_path: Path) -> None:
    rows = [f"{i},1,{i % 2},0.1,0" for i in range(100_000)]
    (tmp_path / "m.csv").write_text("\n".join(["step,epoch,loss,lr,grad_norm", *rows]))
    steep("plot", tmp_path / "m.csv", "--out", tmp_path / "o.svg")
    (line,) = polylines(tmp_path / "o.svg")
    assert 400 <= len(line) <= 800


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        ("step,loss\n1,2\n", ("--column", "los"), "Did you mean loss?"),
        ("loss\n1\n", (), "has no column 'step'"),
        ("loss\n1\n", (), "received: loss"),
        ("step,loss\n1,nan\n2,inf\n", (), "nothing to draw"),
        ("step,loss\n1,-2\n", ("--log",), "nothing to draw"),
        ("step,loss\n1,two\n", (), "in row 2, column 'loss'"),
        ("step,loss\n1,2\n3\n", (), "too few cells in row 3"),
        ("", (), "no rows"),
        ("\0\xff", (), "no rows"),
        ("step,loss\n1,2\n", ("--max-bytes", "1"), "exceeds the memory limit"),
    ],
)
def test_files_that_cannot_be_drawn(
    tmp_path: Path, text: str, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "m.csv").write_text(text)
    printed = steep("plot", tmp_path / "m.csv", "--out", tmp_path / "o.svg", *words, code=3)
    assert says in printed and not (tmp_path / "o.svg").exists()


def test_what_is_drawn_of_odd_numbers(tmp_path: Path) -> None:
    for values in ("1", "1\n2,1", "1e299\n2,-1e299", "1\n2,1e308", "1e-320\n2,2e-320", "0\n2,0"):
        (tmp_path / "m.csv").write_text(f"step,loss\n1,{values}\n")
        steep("plot", tmp_path / "m.csv", "--out", tmp_path / "o.svg")
        (line,) = polylines(tmp_path / "o.svg")
        assert all(0 <= x <= 800 and 0 <= y <= 480 for x, y in line), values


def test_axes_of_few_decades_have_labels(tmp_path: Path) -> None:
    for values, labels in (((0.3, 9), "0.5 1 2 5"), ((1.2, 1.9), "1.2 1.3"), ((1, 1e9), "1 100")):
        rows = "".join(f"{i},{v}\n" for i, v in enumerate(values))
        (tmp_path / "m.csv").write_text("step,loss\n" + rows)
        steep("plot", tmp_path / "m.csv", "--out", tmp_path / "o.svg", "--log")
        texts = [t.text for t in ElementTree.parse(tmp_path / "o.svg").iter(f"{SVG}text")]
        assert set(labels.split()) <= set(texts), (values, texts)


def test_a_single_point_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("step,loss\n1,2\n")
    steep("plot", tmp_path / "m.csv", "--out", tmp_path / "o.svg")
    assert len(list(ElementTree.parse(tmp_path / "o.svg").iter(f"{SVG}circle"))) == 1


# --- TensorBoard ----------------------------------------------------------------------------------


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_what_a_run_writes(model: Path, tmp_path: Path) -> None:
    words = ("--epochs", 2, "--metrics", tmp_path / "m.csv", "--clip-norm", 1)
    words += ("--validation-split", 0.25, "--metric", "r2", "--tensorboard", tmp_path / "board")
    train(model, *words)
    found = scalars(tmp_path / "board")
    rows = [line.split(",") for line in (tmp_path / "m.csv").read_text().splitlines()[1:]]
    columns = {"loss/step": 2, "lr": 3, "grad_norm": 4}
    assert {*found} == {*columns, "loss/epoch", "loss/validation", "validation/r2"}
    for tag, column in columns.items():
        assert [step for step, _ in found[tag]] == [int(row[0]) for row in rows]
        np.testing.assert_allclose(
            [v for _, v in found[tag]], [float(row[column]) for row in rows], rtol=1e-6
        )
    assert [step for step, _ in found["loss/epoch"]] == [6, 12]


def test_a_resumed_run_takes_back_later_steps(model: Path, tmp_path: Path) -> None:
    board, run = tmp_path / "board", tmp_path / "run"
    train(model, "--epochs", 1, "--checkpoint", run, "--tensorboard", board)
    whole = ("--epochs", 2, "--tensorboard", board, "--resume", run)
    train(model, *whole)
    train(model, *whole)  # once more from the same place
    found = scalars(board)["loss/step"]
    assert [step for step, _ in found] == [*range(1, 17)]


def test_the_folder_of_events(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in train(model, "--tensorboard", tmp_path / "file", code=4)
    words = ("--checkpoint", tmp_path / "c", "--tensorboard", tmp_path / "c")
    assert "are the same file" in train(model, *words, code=4)

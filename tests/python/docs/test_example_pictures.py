"""Words in the pictures of the examples: none is cut off, over another, or over a curve."""

import importlib.util
import itertools
import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from checkout import ROOT

plt = pytest.importorskip("matplotlib.pyplot")
EXAMPLES = ROOT / "examples"


def load(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def falling(steps: int) -> list[float]:
    return [3 + 6 * math.exp(-3 * i / steps) + 0.2 * (i % 3 == 1) for i in range(steps)]


def language_model(steps: int, path: Path) -> None:
    each = max(1, steps // 8)
    rows = []
    for step, loss in enumerate(falling(steps), 1):
        rows.append({"step": step, "epoch": 1, "split": "train", "loss": loss})
        if step % each == 0:
            rows.append({"step": step, "epoch": 1, "split": "valid", "loss": loss - 0.1})
    progress = load(EXAMPLES / "transformer_lm" / "progress.py")
    assert progress.plot(rows, path, "Transformer language model", "12.3 M parameters")


def bert(steps: int, path: Path) -> None:
    second = max(1, steps * 9 // 10)  # the paper's share of the first phase
    rows = [
        {"phase": 1 + (i >= second), "masked_words": loss, "next_sentence": 0.7}
        for i, loss in enumerate(falling(steps))
    ]
    picture = load(EXAMPLES / "bert_pretraining" / "picture.py")
    assert picture.draw(rows, path, "BERT", "lengths 32 and 64")


def huggingface(steps: int, path: Path) -> None:
    race = load(EXAMPLES / "huggingface" / "race.py")
    picture = load(EXAMPLES / "huggingface" / "picture.py")
    both = [
        types.SimpleNamespace(name=name, losses=falling(steps), seconds=[1.0] + [each] * steps)
        for name, each in ((race.STEEP, 0.5), (race.PYTORCH, 1.0))
    ]
    result = race.Result(*both, turn=1)
    assert picture.draw(result, 4096, path, "GPT-2", "float32 on 2 threads")


def words_of(figure):
    """The box of each word that is drawn, by its text; a legend's is that of all of it."""
    drawer = figure.canvas.get_renderer()
    every = list(figure.texts)
    for axes in figure.axes:
        every += [*axes.texts, axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        if axes.get_legend() is not None:
            yield "the legend", axes.get_legend().get_window_extent(drawer)
    for text in every:
        if text.get_text() and text.get_visible():
            yield text.get_text(), text.get_window_extent(drawer)


def points_of(figure):
    """Points along the curves, in pixels."""
    for axes in figure.axes:
        for line in axes.lines:
            if line.get_transform() == axes.transData:
                corners = axes.transData.transform(line.get_xydata())
                for a, b in itertools.pairwise(corners):
                    yield from np.linspace(a, b, 50)


@pytest.mark.parametrize("steps", [2, 3, 300])
@pytest.mark.parametrize("draw", [language_model, bert, huggingface])
def test_words_are_legible(draw, steps, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "huggingface"))  # whose picture imports its race
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    draw(steps, tmp_path / "picture.png")
    (figure,) = figures
    figure.canvas.draw()
    words = list(words_of(figure))
    for (a, one), (b, other) in itertools.combinations(words, 2):
        assert not one.overlaps(other), f"{a!r} lies over {b!r}"
    points = list(points_of(figure))
    for name, box in words:
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, name
        assert not any(box.contains(*p) for p in points), f"{name!r} lies over a curve"
        assert "1 steps" not in name

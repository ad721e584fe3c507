"""What ``fit`` writes and reads beside arrays: curves, checkpoints, images in folders."""

from __future__ import annotations

import csv
import logging
import struct

import numpy as np
import onnx
import onnx.parser
import pytest
from session_models import linear

import steep

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(40, 10)).astype(np.float32)
Y = (X @ np.arange(10, dtype=np.float32)[:, None] + 3).astype(np.float32)


def session(**options):
    return steep.TrainingSession(
        linear(), **{"loss": "mse", "optimizer": "sgd", "lr": 0.05, **options}
    )


def scalars(folder):
    """The values in the event files of a folder, as (tag, step)."""
    found = {}
    for file in folder.iterdir():
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            record, at = data[at + 12 : at + 12 + length], at + 16 + length
            for tag in (b"loss/step", b"lr", b"loss/epoch", b"loss/validation", b"validation/r2"):
                place = record.find(bytes([10, len(tag)]) + tag + b"\x15")
                if place >= 0:
                    value = struct.unpack_from("<f", record, place + len(tag) + 3)[0]
                    found[tag.decode(), record[10]] = value
    return found


def test_curves_of_steps_and_epochs(tmp_path):
    of = session(clip_norm=1.0)
    results = []
    files = {"metrics_file": tmp_path / "m.csv", "tensorboard": tmp_path / "runs" / "a"}
    history = of.fit(
        (X, Y),
        epochs=2,
        batch=8,
        validation=0.2,
        metrics=["r2"],
        step_callbacks=[results.append],
        **files,
    )
    with open(tmp_path / "m.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [*range(1, 9)]
    assert [int(row["epoch"]) for row in rows] == [1] * 4 + [2] * 4
    assert [float(row["loss"]) for row in rows] == [r.loss for r in results]
    assert [float(row["grad_norm"]) for row in rows] == [r.grad_norm for r in results]
    events = scalars(tmp_path / "runs" / "a")
    assert events["loss/step", 8] == pytest.approx(results[7].loss)
    assert events["lr", 1] == pytest.approx(0.05)
    for epoch in history.epochs:
        assert events["loss/epoch", epoch.step] == pytest.approx(epoch.loss)
        assert events["loss/validation", epoch.step] == pytest.approx(epoch.validation_loss)
        assert events["validation/r2", epoch.step] == pytest.approx(epoch.metrics["r2"])
    of.fit((X, Y), batch=8, metrics_file=tmp_path / "m.csv")  # goes on behind the earlier rows
    assert len((tmp_path / "m.csv").read_text().splitlines()) == 1 + 8 + 5


def test_a_curve_that_fails_ends_early(tmp_path, caplog):
    (tmp_path / "full.csv").symlink_to("/dev/full")
    with pytest.raises(steep.IoError):
        session().fit((X, Y), metrics_file=tmp_path / "full.csv")
    with pytest.raises(steep.IoError):
        session().fit((X, Y), tensorboard=tmp_path / "full.csv" / "inside")


def test_checkpoints_of_epochs_steps_and_the_best(tmp_path):
    of, seen = session(), []

    def look(result):
        again = session()
        if (tmp_path / "run").exists():
            again.load_checkpoint(tmp_path / "run")
            seen.append(again.step_count)

    history = of.fit(
        (X, Y),
        epochs=3,
        batch=8,
        validation=(X, Y),
        patience=5,
        checkpoint=tmp_path / "run",
        checkpoint_every=2,
        step_callbacks=[look],
    )
    assert seen == [2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14]
    last, best = session(), session()
    last.load_checkpoint(tmp_path / "run")
    best.load_checkpoint(f"{tmp_path / 'run'}.best")
    assert last.step_count == 15 and best.step_count == history.best.step
    for name, value in of.weights().items():
        np.testing.assert_array_equal(value.numpy(), last.weights()[name].numpy())
    with pytest.raises(steep.DataError, match="checkpoint_every needs a folder"):
        of.fit((X, Y), checkpoint_every=2)
    with pytest.raises(steep.DataError, match="checkpoint_every is not a number"):
        of.fit((X, Y), checkpoint="run", checkpoint_every=0)


@pytest.mark.parametrize("name", ["checkpoint", "metrics_file", "tensorboard"])
def test_a_path_has_a_name(name):
    with pytest.raises(steep.DataError, match=f"{name} has no name"):
        session().fit((X, Y), **{name: ""})


@pytest.mark.parametrize("name", ["run", "run.best", "current"])
def test_a_checkpoint_has_its_place_before_the_first_step(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    if name != "current":
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes").write_text("mine")
    of = session()
    with pytest.raises(steep.IoError, match=r"is not (overwritten|replaced)"):
        path = "." if name == "current" else "run"
        of.fit((X, Y), checkpoint=path, validation=0.2, patience=2)
    assert of.step_count == 0


def test_a_last_batch_is_dropped(caplog):
    of = session()
    with caplog.at_level(logging.WARNING, "steep"):
        assert of.fit((X, Y), batch=16, drop_last=True).epochs[0].step == 2
    assert not caplog.records
    assert of.fit((X, Y), batch=16, drop_last=True, validation=0.1).best.validation_loss > 0
    with pytest.raises(steep.DataError, match="too few rows for one batch"):
        of.fit((X, Y), batch=41, drop_last=True)
    with pytest.raises(steep.DataError, match="drop_last is for arrays"):
        of.fit([(X, Y)], drop_last=True)


# --- images --------------------------------------------------------------------------------------


def classifier():
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,3,4,4] x)
        => (float[n,2] y) <float[48,2] w, float[2] b = {0, 0}>
        { f = Flatten<axis = 1>(x) m = MatMul(f, w) y = Add(m, b) }"""
    model = onnx.parser.parse_model(text)
    values = np.random.default_rng(0).normal(0, 0.1, (48, 2)).astype(np.float32)
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "b"))
    return model


@pytest.fixture
def photos(tmp_path):
    """Dark and bright images."""
    image = pytest.importorskip("PIL.Image")
    for place, count in (("train", 12), ("other", 4)):
        for level, name in enumerate(("dark", "\u00fcber")):
            (tmp_path / place / name).mkdir(parents=True)
            for i in range(count):
                pixels = RANDOM.integers(0, 90, (6, 5, 3)) + 150 * level
                image.fromarray(pixels.astype(np.uint8)).save(tmp_path / place / name / f"{i}.png")
    return tmp_path


def test_images_train(photos):
    folder = steep.ImageFolder(photos / "train", mean=0.5, std=[0.25])
    assert folder.classes == ["dark", "\u00fcber"] and folder.labels == [0] * 12 + [1] * 12
    assert len(folder) == 24 and "24 images, 2 classes" in repr(folder)
    of = steep.TrainingSession(classifier(), loss="softmax_cross_entropy", optimizer="sgd", lr=0.02)
    history = of.fit(folder, epochs=8, batch=6, validation=0.25, metrics=["accuracy"])
    assert history.epochs[-1].metrics["accuracy"] == 1.0
    other = steep.ImageFolder(photos / "other", mean=0.5, std=[0.25])
    history = of.fit(folder, batch=6, validation=other, metrics=["accuracy"])
    assert history.best.metrics["accuracy"] == 1.0
    image = folder.read(of.input_info()[0], [0]).numpy()
    assert image.shape == (1, 3, 4, 4) and image.min() >= -2
    theirs = steep.TrainingSession(
        classifier(), loss="softmax_cross_entropy", optimizer="sgd", lr=0.02
    )
    arrays = {"x": folder.read(of.input_info()[0]), "label": np.array(folder.labels)}
    theirs.fit(arrays, epochs=8, batch=6, validation=0.25)
    theirs.fit(arrays, batch=6)
    for name, value in of.weights().items():
        np.testing.assert_array_equal(value.numpy(), theirs.weights()[name].numpy())


def test_validation_has_the_classes_of_the_data(photos):
    for file in (photos / "other" / "dark").iterdir():
        file.unlink()
    (photos / "other" / "dark").rmdir()
    of = steep.TrainingSession(classifier(), loss="softmax_cross_entropy", optimizer="sgd", lr=0.02)
    folder, other = (
        steep.ImageFolder(photos / place, mean=0.5, std=0.25) for place in ("train", "other")
    )
    assert other.labels == [0] * 4
    history = of.fit(folder, epochs=8, batch=6, validation=other, metrics=["accuracy"])
    assert history.epochs[-1].metrics["accuracy"] == 1.0


def test_images_that_do_not_suit(photos):
    of = steep.TrainingSession(classifier(), loss="softmax_cross_entropy")
    for arguments, said in (
        ({"size": 8}, "Images do not suit the model's input"),
        ({"mean": [1, 2]}, "mean"),
    ):
        with pytest.raises(steep.Error, match=said):
            of.fit(steep.ImageFolder(photos / "train", **arguments))
    for arguments in ({"size": 0}, {"size": (1, 2, 3)}, {"std": 0}, {"mean": float("nan")}):
        with pytest.raises(steep.DataError):
            steep.ImageFolder(photos / "train", **arguments)
    with pytest.raises(steep.DataError, match="no classes"):
        of.fit(steep.ImageFolder(photos / "train" / "dark"))
    with pytest.raises(steep.OutOfRangeError):
        steep.ImageFolder(photos / "train").read(of.input_info()[0], [99])
    (photos / "train" / "dark" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(steep.DataError, match=r"3\.png"):
        steep.ImageFolder(photos / "train")
    (photos / "empty").mkdir()
    with pytest.raises(steep.DataError, match="There are no images"):
        steep.ImageFolder(photos / "empty")


def test_a_checkpoint_without_a_place_is_refused_before_the_first_step():
    of = session()
    with pytest.raises(steep.IoError, match="cannot be made"):
        of.fit((X, Y), checkpoint="/proc/nowhere/run")
    assert of.step_count == 0

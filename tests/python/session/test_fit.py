"""``TrainingSession.fit``: epochs, validation, early stopping, callbacks, schedules."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from checkout import ROOT
from onnx import numpy_helper
from session_models import linear

import steep


def data(rows=40, features=10, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    return x, (x @ np.arange(features, dtype=np.float32)[:, None] + 3).astype(np.float32)


def session(**options):
    return steep.TrainingSession(
        linear(), **{"loss": "mse", "optimizer": "sgd", "lr": 0.05, **options}
    )


def weights(of):
    return {name: np.array(t.numpy()) for name, t in of.weights().items()}


def same(ours, theirs):
    for name, value in weights(theirs).items():
        np.testing.assert_array_equal(weights(ours)[name], value)


X, Y = data()


def test_a_list_has_batches():
    with pytest.raises(steep.DataError, match="A list has batches") as raised:
        session().fit([X, Y])
    assert "(x, y)" in raised.value.remedy
    batches = [(X[:8], Y[:8]), (X[8:], Y[8:])]
    with pytest.raises(steep.DataError, match="batch is for arrays"):
        session().fit(batches, batch=8)
    assert session().fit(batches, validation=(X, Y), batch=8).best.step == 2


def test_gradients_of_several_batches_make_one_update():
    ours, theirs, seen = session(), session(), []
    history = ours.fit(
        (X, Y), epochs=2, batch=8, accumulate=2, shuffle=False, step_callbacks=[seen.append]
    )
    for _ in range(2):
        for rows in ([0, 8], [16, 24], [32]):
            for i in rows:
                theirs.step(X[i : i + 8], Y[i : i + 8], accumulate=True)
            theirs.apply_gradients()
    same(ours, theirs)
    assert [e.step for e in history.epochs] == [3, 6] and [r.step for r in seen] == [*range(1, 7)]
    whole = session().fit((X, Y), epochs=2, batch=16, shuffle=False)
    assert history.losses == pytest.approx(whole.losses, rel=1e-4)


def test_an_error_between_batches_leaves_no_gradients():
    ours = session()
    with pytest.raises(steep.ShapeError):
        ours.fit([(X[:8], Y[:8]), (X[:8, :3], Y[:8])], accumulate=2)
    assert ours.accumulated == 0 and ours.step_count == 0
    ours.step(X, Y, accumulate=True)
    with pytest.raises(steep.DataError, match="wait to be applied"):
        ours.fit((X, Y))
    ours.drop_gradients()
    for wrong in (0, 1.5, None):
        with pytest.raises(steep.DataError, match="accumulate"):
            ours.fit((X, Y), accumulate=wrong)


def test_epochs_are_steps_over_the_rows():
    ours, theirs = session(), session()
    history = ours.fit((X, Y), epochs=3, batch=16, shuffle=False)
    losses = []
    for _ in range(3):
        parts = [theirs.step(X[i : i + 16], Y[i : i + 16]).loss for i in (0, 16, 32)]
        losses.append(np.average(parts, weights=[16, 16, 8]))
    same(ours, theirs)
    assert history.losses == pytest.approx(losses)
    assert [(e.number, e.step) for e in history.epochs] == [(1, 3), (2, 6), (3, 9)]
    assert history.stopped_by == "epochs" and history.best is None
    assert history.epochs[0].validation_loss is None and history.validation_losses == []
    assert history.epochs[0].lr == 0.05 and history.epochs[0].seconds > 0


class Again:
    def __iter__(self):
        for i in (0, 16, 32):
            yield [X[i : i + 16], Y[i : i + 16]]


@pytest.mark.parametrize(
    "given",
    [
        {"label": Y, "x": X},
        {"x": X.astype(np.float64), "label": steep.Tensor(Y)},
        (X.tolist(), Y),
        [(X[i : i + 16], Y[i : i + 16]) for i in (0, 16, 32)],
        [{"x": X[i : i + 16], "label": Y[i : i + 16]} for i in (0, 16, 32)],
        Again(),
    ],
    ids=["by name", "other types", "lists", "batches", "batches by name", "iterable"],
)
def test_all_forms_of_data(given):
    ours, theirs = session(), session()
    batch = 16 if isinstance(given, (dict, tuple)) else None
    history = ours.fit(given, epochs=2, batch=batch, shuffle=False)
    expected = theirs.fit((X, Y), epochs=2, batch=16, shuffle=False)
    same(ours, theirs)
    assert history.losses == expected.losses


def test_tensors_of_pytorch():
    torch = pytest.importorskip("torch")
    ours, theirs = session(), session()
    ours.fit((torch.from_numpy(X), torch.from_numpy(Y)), epochs=2, batch=16)
    theirs.fit((X, Y), epochs=2, batch=16)
    same(ours, theirs)
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    ours, theirs = session(), session()
    ours.fit(torch.utils.data.DataLoader(pairs, batch_size=16), epochs=2, validation=(X, Y))
    theirs.fit((X, Y), epochs=2, batch=16, shuffle=False)
    same(ours, theirs)


def test_batches_without_a_length():
    torch = pytest.importorskip("torch")

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(X, Y, strict=True))

    ours, theirs = session(), session()
    ours.fit(torch.utils.data.DataLoader(Rows(), batch_size=16), epochs=2)
    theirs.fit((X, Y), epochs=2, batch=16, shuffle=False)
    same(ours, theirs)


def test_one_fit_at_a_time():
    """A second fit would end the schedule of the first, and restore weights of its own."""
    ours = session()

    def again(event):
        ours.fit((X, Y), schedule=lambda step: 0.25)

    for name in ("callbacks", "step_callbacks"):
        with pytest.raises(steep.DataError, match="fit is running"):
            ours.fit((X, Y), schedule=lambda step: 0.5, **{name: [again]})
    assert ours.lr == 0.05
    refused = []

    def elsewhere(epoch):
        thread = threading.Thread(target=lambda: refused.append(_error_of(again, epoch)))
        thread.start()
        thread.join()

    ours.fit((X, Y), callbacks=[elsewhere])
    assert refused == [steep.DataError]
    ours.fit((X, Y))


def _error_of(function, *arguments):
    with pytest.raises(steep.Error) as error:
        function(*arguments)
    return error.type


def test_orders_depend_on_the_seed_and_the_step(tmp_path):
    whole, parts, other = session(), session(), session()
    whole.fit((X, Y), epochs=3, batch=8, seed=5)
    parts.fit((X, Y), epochs=1, batch=8, seed=5)
    parts.save_checkpoint(tmp_path / "run")
    resumed = session()
    resumed.load_checkpoint(tmp_path / "run")
    resumed.fit((X, Y), epochs=2, batch=8, seed=5)
    same(resumed, whole)
    other.fit((X, Y), epochs=3, batch=8, seed=6)
    assert not np.array_equal(weights(other)["w"], weights(whole)["w"])
    seen = []
    order = session().fit
    order((X, Y), batch=8, step_callbacks=[lambda r: seen.append(r.step)])
    assert seen == [1, 2, 3, 4, 5]


def test_validation():
    ours = session()
    history = ours.fit((X[:30], Y[:30]), epochs=2, validation=(X[30:], Y[30:]), batch=4)
    assert history.validation_losses[-1] == pytest.approx(ours.eval(X[30:], Y[30:]).loss)
    split = session()
    assert (
        split.fit((X, Y), epochs=2, validation=0.25, shuffle=False, batch=4).validation_losses
        == session()
        .fit((X[:30], Y[:30]), epochs=2, validation=(X[30:], Y[30:]), shuffle=False, batch=4)
        .validation_losses
    )
    single = session()
    single.fit((X, Y), epochs=2, validation=np.float32(0.25), shuffle=False, batch=4)
    same(single, split)
    rows = []
    drawn = session(step_outputs=["y"])
    drawn.fit((X, Y), validation=0.25, step_callbacks=[lambda r: rows.append(r.outputs[0].shape)])
    assert rows == [(30, 1)]


def test_early_stopping_and_the_best_weights(tmp_path):
    """The rate makes the loss grow after some epochs."""

    def factor(step):
        return 1.0 if step < 10 else 30.0

    checkpoints = []
    ours = session(optimizer="adam", schedule=factor, lr=0.02)

    def keep(epoch):
        ours.save_checkpoint(tmp_path / str(epoch.number))
        checkpoints.append(epoch)

    history = ours.fit(
        (X, Y),
        epochs=50,
        batch=40,
        validation=(X, Y),
        patience=3,
        restore_best=True,
        callbacks=[keep],
    )
    assert history.stopped_by == "patience" and 10 < len(history.epochs) < 50
    assert history.best is min(history.epochs, key=lambda e: e.validation_loss)
    assert len(history.epochs) == history.best.number + 3
    assert checkpoints == history.epochs
    assert ours.eval(X, Y).loss == history.best.validation_loss
    assert ours.step_count == history.best.step
    theirs = session(optimizer="adam", schedule=factor, lr=0.02)
    theirs.load_checkpoint(tmp_path / str(history.best.number))
    assert ours.step(X, Y).loss == theirs.step(X, Y).loss  # moments and the rate, too
    same(ours, theirs)


def test_best_statistics_and_averages_are_restored():
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 15]>
        net (float[n, 10] x) => (float[n, 1] y) {
            h, m2, v2 = BatchNormalization <training_mode = 1> (x, s, b, m, v)
            y = MatMul(h, w)
        }"""
    )
    values = {"s": np.ones(10), "b": np.zeros(10), "m": np.zeros(10), "v": np.ones(10)}
    values["w"] = np.zeros((10, 1))
    for name, value in values.items():
        made.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    ours = steep.TrainingSession(made, loss="mse", optimizer="adam", lr=0.5, ema_decay=0.5)
    history = ours.fit(
        (X, Y),
        epochs=8,
        batch=40,
        validation=(X, Y),
        restore_best=True,
        schedule=lambda step: 1.0 if step < 4 else 100.0,
    )
    assert ours.statistic_names == ["m", "v"]
    assert history.best.number < 8
    assert ours.eval(X, Y).loss == history.best.validation_loss


def test_callbacks_stop():
    history = session().fit((X, Y), epochs=9, callbacks=[lambda e: e.number == 2])
    assert len(history.epochs) == 2 and history.stopped_by == "callback"
    ours = session()
    history = ours.fit((X, Y), epochs=9, batch=8, step_callbacks=[lambda r: r.step == 7, len_of])
    assert ours.step_count == 7 and len(history.epochs) == 1 and history.stopped_by == "callback"
    history = session().fit((X, Y), epochs=3, callbacks=[lambda e: 1, lambda e: np.False_])
    assert len(history.epochs) == 3  # 1 is not True


def len_of(result):
    return len(result.outputs)


def test_an_error_of_a_callback_leaves_a_session_that_trains():
    ours = session()

    def fail(result):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        ours.fit((X, Y), step_callbacks=[fail], schedule=lambda step: 0.5)
    assert ours.lr == 0.05 and ours.step_count == 1
    ours.fit((X, Y))


def test_the_history_as_csv(tmp_path):
    history = session().fit((X, Y), epochs=2, validation=0.2, metrics=["r2"])
    history.save_csv(tmp_path / "run.csv")
    lines = (tmp_path / "run.csv").read_text().splitlines()
    assert lines[0] == "step,epoch,loss,validation_loss,lr,r2" and len(lines) == 3
    assert float(lines[2].split(",")[2]) == history.losses[1]
    with pytest.raises(steep.IoError, match="there"):
        history.save_csv(tmp_path / "there" / "run.csv")


def test_epochs_are_logged(caplog):
    with caplog.at_level(logging.INFO, "steep"):
        session().fit((X, Y), validation=0.5, metrics=["r2"])
    assert any(
        r.message.startswith("epoch 1: loss ")
        and ", validation " in r.message
        and ", r2 " in r.message
        for r in caplog.records
    )


# --- metrics ---------------------------------------------------------------------------------


def classifier(end="", classes=3):
    made = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[n, 4] x) => (float[n, {classes}] y) {{
            h = MatMul(x, w)
            y = {end or "Identity"}(h)
        }}"""
    )
    w = np.random.default_rng(0).normal(size=(4, classes)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return made


def test_metrics_of_classes():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 4)).astype(np.float32)
    label = rng.integers(0, 3, 50)
    ours = steep.TrainingSession(
        classifier(), loss="softmax_cross_entropy", lr=1e-2, ignore_index=1
    )
    epoch = ours.fit(
        (x, label), validation=(x, label), metrics=["accuracy", "f1", "top2"], batch=20
    ).epochs[0]
    y = ours.eval(x, label).outputs[0].numpy()
    counts = label != 1
    guess = y.argmax(1)
    assert epoch.metrics["accuracy"] == pytest.approx(np.mean(guess[counts] == label[counts]))
    best_two = np.argsort(-y, 1)[:, :2]
    assert epoch.metrics["top2"] == pytest.approx(
        np.mean([t in row for t, row in zip(label[counts], best_two[counts], strict=True)])
    )
    f1 = []
    for c in range(3):
        said, is_ = guess[counts] == c, label[counts] == c
        if said.any() or is_.any():
            f1.append(2 * np.sum(said & is_) / (said.sum() + is_.sum()))
    assert epoch.metrics["f1"] == pytest.approx(np.mean(f1))
    assert list(epoch.metrics) == ["accuracy", "f1", "top2"]
    # the mean over the labels that count, whatever the batches
    assert epoch.validation_loss == pytest.approx(ours.eval(x, label).loss, rel=1e-6)


@pytest.mark.parametrize(
    ("end", "loss", "least"),
    [
        ("", "binary_cross_entropy_with_logits", 0),
        ("Sigmoid", "binary_cross_entropy_with_logits", 0.5),
        ("Sigmoid", "binary_cross_entropy", 0.5),
    ],
)
def test_metrics_of_two_classes(end, loss, least):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 4)).astype(np.float32)
    label = rng.integers(0, 2, (50, 1)).astype(np.float32)
    ours = steep.TrainingSession(classifier(end, 1), loss=loss)
    epoch = ours.fit((x, label), validation=(x, label), metrics=["accuracy", "f1"]).epochs[0]
    said = ours.eval(x, label).outputs[0].numpy() > least
    is_ = label > 0.5
    assert 0 < said.sum() < 50
    assert epoch.metrics["accuracy"] == pytest.approx(np.mean(said == is_))
    f1 = 2 * np.sum(said & is_) / (said.sum() + is_.sum())
    assert epoch.metrics["f1"] == pytest.approx(f1)


def lengths_differ():
    """Batches of two sequences each, of 3, 5 and 2 tokens."""
    rng = np.random.default_rng(3)
    return [
        (rng.normal(size=(2, n, 4)).astype(np.float32), rng.integers(0, 3, (2, n)))
        for n in (3, 5, 2)
    ]


def test_metrics_of_batches_of_other_lengths():
    made = classifier()
    for value in (made.graph.input[0], made.graph.output[0]):
        value.type.tensor_type.shape.dim.add().CopyFrom(value.type.tensor_type.shape.dim[1])
        value.type.tensor_type.shape.dim[1].dim_param = "tokens"
    batches, seen = lengths_differ(), []

    def shapes(prediction, label):
        seen.append((prediction.shape, label.shape))
        return 0

    ours = steep.TrainingSession(made, loss="softmax_cross_entropy")
    epoch = ours.fit(batches, validation=batches, metrics=["accuracy", "f1", shapes]).epochs[0]
    hits = [ours.eval(x, t).outputs[0].numpy().argmax(-1) == t for x, t in batches]
    assert epoch.metrics["accuracy"] == pytest.approx(np.mean(np.concatenate(hits, axis=None)))
    assert 0 < epoch.metrics["f1"] < 1
    assert seen == [((20, 3), (20,))]


def test_metrics_of_numbers_and_functions():
    seen = []

    def largest(prediction, label):
        seen.append((prediction.shape, label.shape))
        return np.abs(prediction - label).max()

    ours = session()
    epoch = ours.fit((X, Y), validation=(X, Y), metrics=["r2", largest], batch=16).epochs[0]
    y = ours.eval(X, Y).outputs[0].numpy()
    r2 = 1 - np.sum((Y - y) ** 2) / np.sum((Y - Y.mean()) ** 2)
    assert epoch.metrics == pytest.approx({"r2": r2, "largest": np.abs(y - Y).max()}, rel=1e-5)
    assert seen == [((40, 1), (40, 1))]
    named = session().fit((X, Y), validation=(X, Y), metrics={"most": largest})
    assert list(named.epochs[0].metrics) == ["most"]


def test_a_schedule_of_fit():
    ours, theirs = session(), session(schedule=lambda step: 1 / (1 + step))
    ours.fit((X, Y), epochs=3, schedule=lambda step: 1 / (1 + step))
    theirs.fit((X, Y), epochs=3)
    same(ours, theirs)
    assert ours.lr == 0.05
    ours.step(X, Y)
    assert "step" not in ours.__dict__  # the engine's own again
    with pytest.raises(steep.DataError, match="has a schedule") as error:
        theirs.fit((X, Y), schedule=lambda step: 1)
    assert error.value.received == "a function"
    with pytest.raises(steep.DataError, match="has a schedule"):
        session(schedule="linear", total_steps=9).fit((X, Y), schedule=lambda step: 1)
    with pytest.raises(steep.DataError, match="no schedule"):
        ours.fit((X, Y), schedule="cosine")


# --- what is refused -------------------------------------------------------------------------

BATCHES = [(X, Y)]


@pytest.mark.parametrize(
    ("given", "options", "kind", "text"),
    [
        ((X, Y[:3]), {}, steep.ShapeError, "0: 40, 1: 3"),
        ({"x": X, "label": Y[:3]}, {}, steep.ShapeError, "label: 3"),
        ((X[:0], Y[:0]), {}, steep.DataError, "no rows"),
        ((), {}, steep.DataError, "no arrays"),
        ([], {}, steep.DataError, "no batches"),
        (3, {}, steep.DataError, "no data to train on"),
        ("x.npz", {}, steep.DataError, "no data to train on"),
        (((X, Y), (X, Y)), {}, steep.DataError, "a tuple of tuples"),
        ((X, np.float32(3)), {}, steep.DataError, "no rows"),
        (iter(BATCHES), {"epochs": 2}, steep.DataError, "only once"),
        ((X, Y), {"validation": iter(BATCHES), "epochs": 2}, steep.DataError, "only once"),
        ((X, Y), {"epochs": 0}, steep.DataError, "epochs"),
        ((X, Y), {"epochs": True}, steep.DataError, "epochs"),
        ((X, Y), {"batch": 2.5}, steep.DataError, "batch"),
        ((X, Y), {"patience": 3}, steep.DataError, "patience needs validation"),
        ((X, Y), {"patience": 0, "validation": 0.1}, steep.DataError, "patience"),
        ((X, Y), {"restore_best": True}, steep.DataError, "restore_best needs validation"),
        ((X, Y), {"metrics": ["r2"]}, steep.DataError, "metrics needs validation"),
        (
            (X, Y),
            {"metrics": ["accuracy"], "validation": 0.1},
            steep.DataError,
            "r2, or a function",
        ),
        ((X, Y), {"metrics": ["r2", "r2"], "validation": 0.1}, steep.DataError, "one name"),
        ((X, Y), {"metrics": "r2", "validation": 0.1}, steep.DataError, "list of names"),
        ((X, Y), {"metrics": [len_of], "validation": (X,)}, steep.DataError, "no labels"),
        ((X, Y), {"validation": 0.001}, steep.DataError, "no rows"),
        ((X, Y), {"validation": 1.5}, steep.DataError, "no rows"),
        ((X, Y), {"validation": float("nan")}, steep.DataError, "nan of 40 rows"),
        ((X, Y), {"validation": float("inf")}, steep.DataError, "inf of 40 rows"),
        ((X, Y), {"validation": True}, steep.DataError, "no rows"),
        ((X, Y), {"seed": -1}, steep.DataError, "seed"),
        ((X, Y), {"seed": None}, steep.DataError, "seed"),
        ((X, Y), {"seed": 1.5}, steep.DataError, "seed"),
        (BATCHES, {"validation": 0.5}, steep.DataError, "Only arrays"),
        ((X, Y), {"callbacks": print}, steep.DataError, "callbacks is a list"),
        ((X, Y), {"step_callbacks": [3]}, steep.DataError, "step_callbacks is a list"),
        ((X, Y, X), {}, steep.DataError, "number of inputs"),
    ],
)
def test_arguments_that_are_wrong(given, options, kind, text):
    ours = session()
    with pytest.raises(kind, match=text):
        ours.fit(given, **options)
    if not (given and "validation" in options and options["validation"] == (X,)):
        assert ours.step_count == 0


def test_a_metric_that_returns_no_number():
    with pytest.raises(steep.DataError, match="must return a number"):
        session().fit((X, Y), validation=0.5, metrics={"mine": lambda y, t: "text"})


def test_metrics_of_a_loss_in_the_model():
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        net (float[n, 4] x) => (float loss) {
            h = MatMul(x, w)
            t = Tanh(h)
            loss = ReduceMean <keepdims = 0> (t)
        }"""
    )
    made.graph.initializer.append(numpy_helper.from_array(np.ones((4, 1), np.float32), "w"))
    ours = steep.TrainingSession(made)
    x = np.ones((8, 4), np.float32)
    history = ours.fit(x, epochs=2, batch=4, validation=(x,))
    assert history.epochs[1].step == 4 and len(history.validation_losses) == 2
    with pytest.raises(steep.DataError, match="in the model"):
        ours.fit(x, validation=(x,), metrics=["accuracy"])


def fixed_model():
    """Rows are fixed to 4 and mixed, so the number stays."""
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[4, 10] x) => (float[4, 1] y) {
            h = Softmax <axis = 0> (x)
            y = MatMul(h, w)
        }"""
    )
    made.graph.initializer.append(numpy_helper.from_array(np.ones((10, 1), np.float32), "w"))
    return made


def test_a_model_that_fixes_the_rows(caplog):
    ours = steep.TrainingSession(fixed_model(), loss="mse")
    history = ours.fit((X[:11], Y[:11]), epochs=2)
    assert history.epochs[1].step == 4
    assert "3 rows of each pass are left out" in caplog.text
    with pytest.raises(steep.DataError, match="fixes") as error:
        ours.fit((X, Y), batch=8)
    assert error.value.expected.startswith("4")
    with pytest.raises(steep.DataError, match="too few rows"):
        ours.fit((X[:3], Y[:3]))


# --- Ctrl-C and progress ---------------------------------------------------------------------


def test_a_bar_is_shown_after_two_seconds(tmp_path: Path):
    pytest.importorskip("tqdm")
    code = f"""
import sys, time, numpy as np, steep
sys.path.insert(0, {str(ROOT / "tests/python/support")!r})
from session_models import linear
sys.stderr.isatty = lambda: True
x, y = np.ones((8, 10), np.float32), np.ones((8, 1), np.float32)
wait = float(sys.argv[1])
steep.TrainingSession(linear(), loss="mse").fit(
    (x, y), epochs=5, step_callbacks=[lambda r: time.sleep(wait)], progress=sys.argv[2] == "1")
"""
    for wait, shown, expected in (("0.6", "1", True), ("0", "1", False), ("0.6", "0", False)):
        done = subprocess.run(
            [sys.executable, "-c", code, wait, shown], capture_output=True, text=True, check=True
        )
        assert ("step" in done.stderr) == expected, done.stderr

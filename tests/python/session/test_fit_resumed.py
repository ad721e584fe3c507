"""``fit`` goes on within the epoch in which a checkpoint was saved."""

from __future__ import annotations

import logging
import os
import signal

import numpy as np
import pytest
from session_models import linear

import steep

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(37, 10)).astype(np.float32)
Y = (X @ np.arange(10, dtype=np.float32)[:, None] + 3).astype(np.float32)
EPOCHS = 3


def session(**options):
    return steep.TrainingSession(linear(), loss="mse", optimizer="adam", lr=0.05, **options)


def weights(of):
    return {name: np.array(value.numpy()) for name, value in of.weights().items()}


def told(history):
    """What the epochs of a history have in common with those of another run."""
    return [(e.step, e.loss, e.validation_loss, e.metrics, e.lr) for e in history.epochs]


class StopError(Exception):
    pass


def stop_after(step):
    def callback(result):
        if result.step == step:
            raise StopError

    return callback


def resumed(run):
    of = session()
    of.load_checkpoint(run)
    return of


# keywords of fit: batches of 4 or of all that is left, with the number of steps of an epoch
WAYS = {
    "shuffled": ({"batch": 4}, 10),
    "in order": ({"batch": 4, "shuffle": False}, 10),
    "in parts": ({"batch": 2, "accumulate": 3}, 7),
    "whole batches": ({"batch": 4, "drop_last": True}, 9),
    "with a split": ({"batch": 3, "validation": 0.2, "metrics": ["r2"]}, 10),
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("at", ["first", "middle", "last", "second epoch"])
def test_a_run_goes_on_within_its_epoch(tmp_path, name, at):
    options, steps = WAYS[name]
    step = {"first": 1, "middle": steps // 2, "last": steps - 1, "second epoch": steps + 3}[at]
    whole, parts = session(), session()
    expected = whole.fit((X, Y), epochs=EPOCHS, **options)
    with pytest.raises(StopError):
        parts.fit(
            (X, Y),
            epochs=EPOCHS,
            checkpoint=tmp_path / "run",
            checkpoint_every=1,
            step_callbacks=[stop_after(step)],
            **options,
        )
    of = resumed(tmp_path / "run")
    assert of.step_count == step
    before = step // steps  # whole epochs
    history = of.fit((X, Y), epochs=EPOCHS - before, **options)
    assert told(history) == told(expected)[before:]
    for key, value in weights(whole).items():
        np.testing.assert_array_equal(weights(of)[key], value)


def test_ctrl_c_saves_where_the_epoch_stands(tmp_path):
    whole, of = session(), session()
    expected = whole.fit((X, Y), epochs=2, batch=8)

    def interrupt(result):
        if result.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        options = {"checkpoint": tmp_path / "run", "step_callbacks": [interrupt]}
        of.fit((X, Y), epochs=2, batch=8, **options)
    assert told(resumed(tmp_path / "run").fit((X, Y), epochs=2, batch=8)) == told(expected)


def test_ctrl_c_while_it_validates_leaves_the_validation(tmp_path):
    whole, of = session(), session()
    validation = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 36, 4)]
    expected = whole.fit((X, Y), epochs=2, batch=8, validation=validation)

    class Interrupting(list):
        def __iter__(self):
            yield from validation[:2]
            os.kill(os.getpid(), signal.SIGINT)
            yield from validation[2:]

    with pytest.raises(KeyboardInterrupt):
        of.fit((X, Y), batch=8, validation=Interrupting(validation), checkpoint=tmp_path / "run")
    history = resumed(tmp_path / "run").fit((X, Y), epochs=2, batch=8, validation=validation)
    assert told(history) == told(expected)


# (data and keywords of the second call, what it says)
OTHERS = {
    "another batch": (((X, Y), {"batch": 4}), "these options change its batches"),
    "other rows": (((X[:20], Y[:20]), {"batch": 8}), "there are 20 rows of arrays, and 37 before"),
    "given batches": (([(X, Y)], {}), "there are no rows of arrays, and 37 before"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_epoch_that_begins_anew_is_said(tmp_path, name, caplog):
    of = session()
    with pytest.raises(StopError):
        options = {"checkpoint": tmp_path / "run", "checkpoint_every": 1}
        of.fit((X, Y), batch=8, step_callbacks=[stop_after(2)], **options)
    (data, options), why = OTHERS[name]
    again = resumed(tmp_path / "run")
    with caplog.at_level(logging.WARNING, "steep"):
        again.fit(data, **options)
    last = caplog.records[-1].getMessage()
    assert last == f"fit: the epoch in which the checkpoint was saved begins anew: {why}"
    assert again.step_count == 2 + {"another batch": 10, "other rows": 3, "given batches": 1}[name]
    caplog.clear()
    again.fit(data, **options)
    assert not caplog.records


def test_batches_of_the_caller_begin_anew(tmp_path, caplog):
    batches = [(X[:8], Y[:8]), (X[8:], Y[8:])]
    of = session()
    with pytest.raises(StopError):
        options = {"checkpoint": tmp_path / "run", "checkpoint_every": 1}
        of.fit(batches, step_callbacks=[stop_after(1)], **options)
    with caplog.at_level(logging.WARNING, "steep"):
        resumed(tmp_path / "run").fit(batches)
    assert "fit does not know the order of batches that it is given" in caplog.text


def test_a_step_of_the_callers_ends_the_epoch(tmp_path):
    of = session()
    with pytest.raises(StopError):
        options = {"checkpoint": tmp_path / "run", "checkpoint_every": 1}
        of.fit((X, Y), batch=8, step_callbacks=[stop_after(2)], **options)
    again = resumed(tmp_path / "run")
    again.step(X, Y)
    assert again.fit((X, Y), batch=8).epochs[0].step == 3 + 5


# --- the best epoch ------------------------------------------------------------------------------

BEST = {"batch": 8, "validation": 0.25, "patience": 3, "restore_best": True}


def interrupted(tmp_path, **options):
    """The history of two epochs that get better, of which there is a checkpoint."""
    history = session().fit((X, Y), epochs=2, checkpoint=tmp_path / "run", **{**BEST, **options})
    assert history.best.number == 2
    return history.best


def test_the_best_epoch_before_a_checkpoint_counts(tmp_path):
    best = interrupted(tmp_path)
    for number in (0, -3):  # and again, since the checkpoint of the second run knows it too
        again = resumed(tmp_path / "run")
        again.lr = 300.0  # so that all epochs are worse
        history = again.fit((X, Y), epochs=9, checkpoint=tmp_path / "run", **BEST)
        assert history.stopped_by == "patience" and again.lr == 300.0
        assert (history.best.number, history.best.step) == (number, best.step)
        assert history.best.validation_loss == best.validation_loss
        assert again.step_count == best.step
        kept = resumed(f"{tmp_path / 'run'}.best")
        for key, value in weights(again).items():
            np.testing.assert_array_equal(weights(kept)[key], value)


def test_patience_counts_epochs_before_a_checkpoint(tmp_path):
    interrupted(tmp_path)
    worse = resumed(tmp_path / "run")
    worse.lr = 300.0
    options = {**BEST, "restore_best": False, "checkpoint": tmp_path / "run"}
    assert worse.fit((X, Y), epochs=2, **options).best.number == 0
    again = resumed(tmp_path / "run")
    history = again.fit((X, Y), epochs=9, **options)
    assert (len(history.epochs), history.best.number, history.stopped_by) == (1, -2, "patience")


def test_a_better_epoch_replaces_the_one_before(tmp_path):
    whole = session().fit((X, Y), epochs=5, **BEST)
    interrupted(tmp_path)
    again = resumed(tmp_path / "run")
    history = again.fit((X, Y), epochs=3, checkpoint=tmp_path / "run", **BEST)
    assert told(history) == told(whole)[2:]
    assert history.best.step == whole.best.step == again.step_count


@pytest.mark.parametrize("case", ["other data", "no folder", "batches", "another run"])
def test_a_best_epoch_that_is_not_comparable_is_said(tmp_path, caplog, case):
    interrupted(tmp_path)
    others = {"other data": (X, Y), "batches": [(X, Y)]}
    options = {**BEST, "validation": others.get(case, BEST["validation"])}
    best = tmp_path / "run.best"
    if case == "no folder":
        best.rename(tmp_path / "moved")
    if case == "another run":
        other = session()
        other.step(X, Y)
        other.save_checkpoint(best)
    again = resumed(tmp_path / "run")
    before, rate = again.step_count, again.lr
    with caplog.at_level(logging.WARNING, "steep"):
        history = again.fit((X, Y), epochs=1, **options)
    steps = 5 if case in others else 4  # of all rows, or of three quarters
    assert history.best.number == 1 and (again.step_count, again.lr) == (before + steps, rate)
    assert [r.getMessage() for r in caplog.records if "sought anew" in r.getMessage()]

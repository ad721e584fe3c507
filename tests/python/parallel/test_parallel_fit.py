"""``fit`` of N processes gives what ``fit`` of one gives with the same arrays."""

import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from parallel_sessions import CASES, X, Y, alone, assert_same, labels_of, together  # noqa: E402
from several_processes import in_processes  # noqa: E402

import steep  # noqa: E402

FITS = {
    "batches": {"epochs": 3, "batch": 4},
    "a last batch that is smaller": {"epochs": 2, "batch": 5},
    "fewer rows than processes": {"epochs": 2, "batch": 15},
    "held out": {"epochs": 3, "batch": 4, "validation": 0.25},
    "accumulated": {"epochs": 2, "batch": 3, "accumulate": 2},
    "the best weights": {"epochs": 4, "batch": 8, "validation": (X, Y), "restore_best": True},
    "in order": {"epochs": 2, "batch": 6, "shuffle": False},
}


def fit_as_one(rank, optimizer, zero):
    for name, keywords in FITS.items():
        expected, session = alone(**CASES[optimizer]), together(**CASES[optimizer], zero=zero)
        wanted = expected.fit((X, Y), progress=False, **keywords)
        found = session.fit((X, Y), progress=False, **keywords)
        assert len(found.epochs) == len(wanted.epochs), name
        for one, other in zip(found.epochs, wanted.epochs, strict=True):
            assert one.loss == pytest.approx(other.loss, abs=1e-6), name
            assert one.validation_loss == pytest.approx(other.validation_loss, abs=1e-6), name
        assert_same(session, expected)
        assert session.step_count == expected.step_count, name
        session.step(X[rank::2], Y[rank::2])  # and it goes on
        expected.step(X, Y)
        assert_same(session, expected)


@pytest.mark.parametrize(
    ("optimizer", "zero"), [("sgd", 0), ("adamw", 0), ("adamw", 1), ("sgd", 2)]
)
def test_fit_is_that_of_one_process(optimizer, zero):
    in_processes(2, fit_as_one, optimizer, zero)


def fit_ignored_labels(rank):
    options = CASES["ignored labels"]
    expected, session = alone(**options), together(**options)
    data = {"x": X, "label": labels_of(options)}
    metrics = {"validation": data, "metrics": ["accuracy"], "progress": False}
    wanted = expected.fit(data, epochs=2, batch=8, **metrics)
    found = session.fit(data, epochs=2, batch=8, **metrics)
    for one, other in zip(found.epochs, wanted.epochs, strict=True):
        assert one.validation_loss == pytest.approx(other.validation_loss, abs=1e-6)
        assert one.metrics == pytest.approx(other.metrics)
    assert_same(session, expected)


def test_fit_of_ignored_labels_and_metrics():
    in_processes(2, fit_ignored_labels)


def end_together(rank):
    session = together(**CASES["sgd"])
    # Only one process wants to end.
    callback = [lambda epoch: rank == 1 and epoch.number == 2]
    history = session.fit((X, Y), epochs=5, callbacks=callback)
    assert (history.stopped_by, len(history.epochs)) == ("callback", 2)
    steps = session.step_count
    history = session.fit((X, Y), batch=4, step_callbacks=[lambda result: rank == 0])
    assert (history.stopped_by, session.step_count) == ("callback", steps + 1)

    def interrupt(result):
        if rank == 1:
            signal.raise_signal(signal.SIGINT)

    steps = session.step_count
    with pytest.raises(KeyboardInterrupt):
        session.fit((X, Y), batch=4, step_callbacks=[interrupt])
    assert session.step_count == steps + 1
    session.step(X, Y)


def test_all_end_together():
    in_processes(2, end_together)


def are_compared(rank):
    session = together(**CASES["sgd"])
    # One element in the middle of 500 rows.
    x, y = np.tile(X[:10], (50, 1)), np.tile(Y[:10], (50, 1))
    x[251, 1] += rank
    with pytest.raises(steep.DataError, match="different data"):
        session.fit((x, y))
    # Functions that differ from the first step on, or from the third.
    for schedule in (lambda step: 1 / (1 + rank), lambda step: 0.5 if rank and step > 1 else 1.0):
        with pytest.raises(steep.Error, match="learning rate"):
            session.fit((X, Y), batch=4, schedule=schedule)
    # A schedule in one process, and an argument that is wrong before anything is compared.
    with pytest.raises(steep.Error, match="learning rate"):
        session.fit((X, Y), batch=4, schedule=(lambda step: 0.5) if rank else None)
    with pytest.raises(steep.Error, match="no schedule"):
        session.fit((X, Y), batch=4, schedule=0.5 if rank else None)
    assert len(session.fit((X, Y), batch=4).epochs) == 1


def test_data_and_schedules_are_compared():
    in_processes(2, are_compared)


def have_errors(rank):
    session = together(**CASES["sgd"])
    with pytest.raises(steep.DataError, match="different data"):
        session.fit((X[rank * 8 :][:8], Y[:8]))
    with pytest.raises(steep.DataError, match="different data") as raised:
        session.fit((X[: 16 - rank], Y[: 16 - rank]))
    assert raised.value.received.startswith("16 rows in rank 0, 15 rows in rank 1")
    with pytest.raises(steep.DataError, match="divides arrays"):
        session.fit([(X, Y)])

    for keywords in (
        {"seed": rank},
        {"batch": 8 - 2 * rank, "epochs": 2},
        {"validation": 0.25 + 0.25 * rank, "batch": 12},
    ):
        with pytest.raises(steep.DataError, match="other arguments") as raised:
            session.fit((X, Y), **keywords)
        name, value = next(iter(keywords.items()))
        assert f"{name} {value}" in raised.value.received

    def fail(event):
        if rank == 1:
            raise ZeroDivisionError("of a callback")

    for keywords in (
        {"callbacks": [fail]},
        {"step_callbacks": [fail]},
        {"accumulate": 2, "batch": 4, "step_callbacks": [fail]},
    ):
        with pytest.raises(ZeroDivisionError if rank == 1 else steep.ProviderError) as raised:
            session.fit((X, Y), **keywords)
        assert "of a callback" in str(raised.value)
    # An argument that is wrong in one process, a metric that fails in one.
    kinds = (steep.DataError, steep.Error)
    with pytest.raises(kinds[rank == 0]):
        session.fit((X, Y), epochs=rank - 1)

    def metric(y, label):
        return 1 / 0 if rank == 1 else 1.0

    with pytest.raises((ZeroDivisionError, steep.ProviderError)):
        session.fit((X, Y), validation=(X, Y), metrics=[metric])
    # Between two parts of an update: the first part is dropped.
    labels = Y.copy()
    assert session.step(X, Y).loss > 0
    history = session.fit((X, labels), accumulate=2, batch=4)
    assert len(history.epochs) == 1


def test_errors_of_one_process_end_fit_in_all():
    in_processes(2, have_errors)


# keywords of fit, its steps in an epoch, and the step after which it is interrupted
RESUMED = {
    "shuffled": ({"batch": 4}, 4, 6),
    "in parts": ({"batch": 3, "accumulate": 2}, 3, 1),
    "held out": ({"batch": 3, "validation": 0.25, "metrics": ["r2"]}, 4, 7),
    "the best": ({"batch": 4, "validation": 0.25, "patience": 9, "restore_best": True}, 3, 4),
}


def told(history):
    keys = ("step", "loss", "validation_loss", "lr")
    return [[getattr(e, key) or 0 for key in keys] + [*e.metrics.values()] for e in history.epochs]


def goes_on_within_an_epoch(rank, folder, optimizer, zero):
    options = CASES[optimizer]
    for name, (keywords, steps, step) in RESUMED.items():
        run = folder / f"{name} {optimizer} {zero}"
        whole, parts = alone(**options), together(**options, zero=zero)
        expected = whole.fit((X, Y), epochs=3, **keywords)

        def interrupt(result, step=step):  # in one process
            if rank == 1 and result.step == step:
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            parts.fit(
                (X, Y),
                epochs=3,
                checkpoint=run,
                step_callbacks=[interrupt],
                progress=False,
                **keywords,
            )
        dist.barrier()  # rank 0 writes the checkpoint
        # As many processes go on, or one.
        for again in (together(**options, zero=zero), alone(**options)):
            again.load_checkpoint(run)
            assert again.step_count == step, name
            before = step // steps  # whole epochs
            history = again.fit((X, Y), epochs=3 - before, progress=False, **keywords)
            np.testing.assert_allclose(told(history), told(expected)[before:], atol=1e-6)
            assert history.best is None or history.best.step == expected.best.step
            assert_same(again, whole)
        with pytest.raises(steep.DataError, match="other arguments"):
            again = together(**options, zero=zero)
            if rank == 0:
                again.load_checkpoint(run)
            again.fit((X, Y), epochs=1, **keywords)


@pytest.mark.parametrize(("optimizer", "zero"), [("adamw", 0), ("adamw", 1)])
def test_a_run_goes_on_within_its_epoch(tmp_path, optimizer, zero):
    in_processes(2, goes_on_within_an_epoch, tmp_path, optimizer, zero)

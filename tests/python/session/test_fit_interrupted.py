"""Ctrl-C while ``TrainingSession.fit`` runs."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from session_models import linear

import steep

DATA = np.ones((40, 10), np.float32), np.arange(40, dtype=np.float32)[:, None]


def session():
    return steep.TrainingSession(linear(), loss="mse", optimizer="sgd", lr=0.01)


def weight(of):
    return np.array(of.weights()["w"].numpy())


def test_ctrl_c_waits_for_the_step():
    ours = session()
    states = []

    def interrupt(result):
        if result.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
            states.append(weight(ours))

    with pytest.raises(KeyboardInterrupt):
        ours.fit(DATA, epochs=10, batch=8, step_callbacks=[interrupt])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert ours.step_count == 3
    np.testing.assert_array_equal(weight(ours), states[0])
    ours.fit(DATA)  # it may be used

    def twice(result):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        states.append("not reached")

    with pytest.raises(KeyboardInterrupt):
        ours.fit(DATA, step_callbacks=[twice])
    assert len(states) == 1


def test_a_handler_of_the_program_stays():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        ours = session()
        ours.fit(DATA, step_callbacks=[lambda r: os.kill(os.getpid(), signal.SIGINT)])
        assert seen == [1, 1] and ours.step_count == 2
    finally:
        signal.signal(signal.SIGINT, before)

"""Schedules of ``TrainingSession`` that are functions, and options of the wrong type."""

from __future__ import annotations

import math

import numpy as np
import pytest
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


def test_a_schedule_is_a_function():
    ours = session(schedule=lambda step: 1 / (1 + step), groups=[(["b"], {"lr_multiplier": 2.0})])
    theirs = session(groups=[(["b"], {"lr_multiplier": 2.0})])
    for i in range(4):
        theirs.lr = 0.05 / (1 + i)
        assert ours.lr == theirs.lr
        result = ours.step(X, Y)
        assert result.lr == theirs.step(X, Y).lr == 0.05 / (1 + i)
    same(ours, theirs)
    ours.lr = 1.0  # before the factor
    assert ours.lr == 0.2


def test_a_schedule_applies_to_groups_with_an_optimizer_of_their_own():
    groups = [(["b"], {"optimizer": "sgd", "lr": 0.1})]
    ours = session(schedule=lambda step: 0.5, groups=groups)
    theirs = session(lr=0.025, groups=[(["b"], {"optimizer": "sgd", "lr": 0.05})])
    for _ in range(3):
        ours.step(X, Y)
        theirs.step(X, Y)
    same(ours, theirs)
    own = steep._steep.OptimizerOptions()
    own.kind, own.lr = "sgd", 0.2
    ours.set_group(0, own)
    theirs.set_group(0, own)
    other = session(lr=0.025, groups=[(["b"], {"optimizer": "sgd", "lr": 0.1})])
    other.set_weights(ours.weights())
    ours.step(X, Y)
    other.step(X, Y)
    same(ours, other)
    assert own.lr == 0.2


def test_a_schedule_of_parts_and_checkpoints(tmp_path):
    def factor(step):
        return 0.5**step

    whole, parts = session(schedule=factor), session(schedule=factor)
    for _ in range(2):
        whole.step(X, Y)
        for half in (slice(0, 20), slice(20, 40)):
            parts.step(X[half], Y[half], accumulate=True)
        assert parts.apply_gradients().lr == pytest.approx(0.05 * factor(parts.step_count - 1))
    for name, value in weights(whole).items():
        np.testing.assert_allclose(weights(parts)[name], value, rtol=1e-5, atol=1e-6)
    whole.save_checkpoint(tmp_path / "run")
    resumed = session(schedule=factor, lr=9.0)
    resumed.load_checkpoint(tmp_path / "run")
    assert resumed.lr == whole.lr == 0.05 / 4
    assert resumed.step(X, Y).loss == whole.step(X, Y).loss
    same(resumed, whole)
    with pytest.raises(steep.ModelError, match="schedule"):
        whole.save_artifact(tmp_path / "a.steep", (X, Y))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "text", None])
def test_a_schedule_without_a_factor(value):
    ours = session(schedule=lambda step: value if step else 1)
    ours.step(X, Y)
    before = weights(ours)
    with pytest.raises(steep.DataError, match="for step 1") as error:
        ours.step(X, Y)
    assert error.value.node == "schedule" and error.value.received == repr(value)
    np.testing.assert_array_equal(weights(ours)["w"], before["w"])


@pytest.mark.parametrize(
    ("options", "expected", "remedy"),
    [
        ({"loss": lambda y, t: 0}, "text: mse", "GradientSession"),
        ({"lr": lambda step: 0.1}, "a number: Learning rate", "schedule="),
        ({"optimizer": object}, "text", ""),
        ({"schedule": 3}, "text: constant, linear or cosine", ""),
        ({"clip_norm": "1"}, "a number", ""),
        ({"trainable": 3}, "a list", ""),
        ({"nesterov": "yes"}, "", ""),
        ({"groups": [(["b"], {"optimizer": "sgd", "lr": len})]}, "a number", "schedule="),
        ({"schedule": abs, "warmup_steps": 3}, "a function alone", "warm-up"),
    ],
)
def test_options_of_another_type(options, expected, remedy):
    with pytest.raises(steep.ModelError) as error:
        session(**options)
    assert error.value.node and expected in error.value.expected and remedy in error.value.remedy


def test_a_group_with_a_rate_has_a_multiple_of_the_session_s():
    ours = session(groups=[(["b"], {"lr": 0.1, "weight_decay": 0.5})])
    theirs = session(groups=[(["b"], {"lr_multiplier": 2.0, "weight_decay": 0.5})])
    for of in (ours, theirs):
        of.step(X, Y)
        of.lr = 0.01
        of.step(X, Y)
    same(ours, theirs)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"lr": 0.1}, "no pair"),
        ({"params": ["b"], "lr": 0.1}, "no pair"),
        ("b", "no pair"),
        (("b", {"lr": 0.1}), "no pair"),
        ((["b"],), "no pair"),
        ((None, {"lr": 0.1}), "no pair"),
        ((["b"], {"lr": True}), "cannot have this lr"),
        ((["b"], 0.1), "no pair"),
        ((["b"], {"rate": 0.1}), "no such setting"),
        ((["b"], {"lr": "fast"}), "cannot have this lr"),
        ((["b"], {"lr": 0.1, "lr_multiplier": 2.0}), "cannot have this lr"),
        ((["b"], {"weight_decay": "much"}), "cannot have this value"),
        ((["b"], {"optimizer": "sgd", "rate": 0.1}), "no such setting"),
    ],
)
def test_a_group_that_is_none(group, words):
    with pytest.raises(steep.ModelError, match=words) as caught:
        session(groups=[group])
    assert caught.value.expected


def test_a_rate_of_a_group_as_numpys_number():
    ours = session(groups=[(["b"], {"lr": np.float32(0.1)})])
    theirs = session(groups=[(["b"], {"lr": float(np.float32(0.1))})])
    for of in (ours, theirs):
        of.step(X, Y)
    same(ours, theirs)


def test_a_rate_of_a_group_needs_one_of_the_session():
    with pytest.raises(steep.ModelError, match="lr is not 0"):
        session(lr=0.0, groups=[(["b"], {"lr": 0.1})])

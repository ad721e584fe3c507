"""Numbers that the step cannot compute with in float32, and moments that no update leaves."""

import math

import numpy as np
import onnx
import onnx.parser
import pytest

import steep
from steep.compat.on_device import training_optimizer

X, Y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
TOO_LARGE = (1e39, math.inf, math.nan)


def session(**options) -> steep.TrainingSession:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
            y = MatMul(x, w) }""")
    return steep.TrainingSession(
        model, **{"loss": "mse", "lr": 0.1, "optimizer": "adam", **options}
    )


@pytest.mark.parametrize("number", [*TOO_LARGE, -1e39])
@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("lr", {}),
        ("lr", {"optimizer": "sgd"}),
        ("eps", {}),
        ("weight_decay", {}),
        ("momentum", {"optimizer": "sgd"}),
        ("dampening", {"optimizer": "sgd", "momentum": 0.9}),
        ("momentum_decay", {"optimizer": "nadam"}),
        ("alpha", {"optimizer": "rmsprop"}),
        ("lr_decay", {"optimizer": "adagrad"}),
        ("initial_accumulator_value", {"optimizer": "adagrad"}),
        ("clip_threshold", {"optimizer": "adafactor"}),
        ("clip_norm", {}),
        ("clip_value", {}),
        ("ema_decay", {}),
        ("huber_delta", {"loss": "huber"}),
    ],
)
def test_options_fit_float32(name, others, number):
    with pytest.raises(steep.ModelError, match="out of range"):
        session(**others, **{name: number})


@pytest.mark.parametrize("number", [*TOO_LARGE, -1.0])
def test_betas_are_below_one(number):
    for betas in ((number, 0.9), (0.9, number)):
        with pytest.raises(steep.ModelError, match="out of range"):
            session(betas=betas)


@pytest.mark.parametrize("number", TOO_LARGE)
def test_settings_of_groups_and_classes_fit_float32(number):
    with pytest.raises(steep.ModelError, match="lr_multiplier is out of range"):
        session(groups=[(["w"], {"lr_multiplier": number})])
    with pytest.raises(steep.ModelError, match="class_weights is out of range"):
        session(loss="softmax_cross_entropy", class_weights=(1.0, number))
    with pytest.raises(steep.ModelError, match="lora_alpha"):
        session(lora_rank=1, lora_alpha=number)


@pytest.mark.parametrize("number", [*TOO_LARGE, -1.0])
def test_rates_that_are_set_fit_float32(number):
    own = session()
    with pytest.raises(steep.DataError, match="learning rate is out of range"):
        own.lr = number
    assert own.lr == 0.1
    with pytest.raises(steep.DataError, match="learning rate is out of range"):
        training_optimizer._rate(number)


def test_a_multiplied_rate_fits_float32():
    own = session(groups=[(["w"], {"lr_multiplier": 100.0})])
    with pytest.raises(steep.DataError, match="learning rate is out of range"):
        own.lr = 1e38


@pytest.mark.parametrize("factor", [1e40, math.inf, math.nan, -1.0])
def test_schedules_give_rates_of_float32(factor):
    with pytest.raises(steep.DataError, match="learning rate"):
        session(schedule=lambda step: factor).step(X, Y)


MOMENTS = {
    "adam": "exp_avg_sq",
    "adagrad": "sum",
    "adadelta": "square_avg",
    "rmsprop": "square_avg",
    "adamax": "exp_inf",
    "adafactor": "row_var",
    "nadam": "exp_avg_sq",
    "radam": "exp_avg_sq",
    "lamb": "exp_avg_sq",
}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("optimizer", MOMENTS)
def test_moments_that_no_update_leaves_are_refused(optimizer, number):
    own = session(optimizer=optimizer)
    own.step(X, Y)
    name = f"{MOMENTS[optimizer]}/w"
    before = np.array(own.optimizer_state()[name])
    wrong = before.copy()
    wrong.flat[-1] = number
    with pytest.raises(steep.DataError, match="moment is not valid") as error:
        own.set_optimizer_state({name: wrong})
    assert name in str(error.value)
    np.testing.assert_array_equal(own.optimizer_state()[name], before)
    own.set_optimizer_state({name: before})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_first_moments_are_finite(number):
    own = session()
    own.set_optimizer_state({"exp_avg/w": np.full((3, 2), -1, np.float32)})
    with pytest.raises(steep.DataError, match="exp_avg/w"):
        own.set_optimizer_state({"exp_avg/w": np.full((3, 2), number, np.float32)})


def test_narrow_moments_are_checked_before_they_are_rounded():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 64] x) => (float[n, 64] y) <float[64, 64] w> { y = MatMul(x, w) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    own = steep.TrainingSession(model, loss="mse", optimizer="adam", state_precision="int8")
    for number in (math.nan, -1.0):
        with pytest.raises(steep.DataError, match="exp_avg_sq/w"):
            own.set_optimizer_state({"exp_avg_sq/w": np.full((64, 64), number, np.float32)})


def test_checkpoints_with_such_moments_are_refused(tmp_path):
    """Memory that a session shares can be written by others, before it is saved."""
    own, other = session(), session()
    own.step(X, Y)
    moment = np.from_dlpack(own.state("exp_avg_sq/w"))
    for number in (-1.0, math.nan):
        moment[0, 0] = number
        own.save_checkpoint(tmp_path / "run")
        with pytest.raises(steep.CheckpointError, match="exp_avg_sq/w"):
            other.load_checkpoint(tmp_path / "run")
    moment[0, 0] = math.inf  # a step leaves it, if the square of a gradient overflows
    own.save_checkpoint(tmp_path / "run")
    other.load_checkpoint(tmp_path / "run")

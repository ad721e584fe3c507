"""A session that loads a checkpoint says in one warning which of its options are others."""

import logging

import numpy as np
import onnx.parser
import pytest

import steep

MODEL = onnx.parser.parse_model(
    """
    <ir_version: 8, opset_import: ["": 18]>
    g (float[n, 2] x) => (float[n, 3] y)
    <float[2, 3] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}> { y = MatMul (x, w) }
    """
)
X = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
LABELS = np.arange(8) % 3


def session(**options):
    options = {"loss": "softmax_cross_entropy", "lr": 0.1, **options}
    return steep.TrainingSession(MODEL, **options)


# (options of the session, what the warning says)
CHANGES = {
    "label_smoothing": ({"label_smoothing": 0.1}, "label_smoothing 0 → 0.1"),
    "class_weights": ({"class_weights": [1, 2, 3]}, "class_weights [] → [1, 2, 3]"),
    "ignore_index": ({"ignore_index": 2}, "ignore_index none → 2"),
    "clip_norm": ({"clip_norm": 0.5}, "clip_norm 0 → 0.5"),
    "clip_value": ({"clip_value": 0.5}, "clip_value 0 → 0.5"),
    "schedule": (
        {"schedule": "cosine", "total_steps": 9},
        "schedule constant → cosine, total_steps 0 → 9",
    ),
    "weight_decay": ({"weight_decay": 0.01}, "weight_decay 0 → 0.01"),
    "betas": ({"betas": (0.8, 0.99)}, "beta1 0.9 → 0.8, beta2 0.999 → 0.99"),
    "lr": ({"lr": 0.2}, "lr 0.1 → 0.2 (not used: the checkpoint's rate, 0.1, stays)"),
    "maximize": ({"maximize": True}, "maximize false → true"),
    "precision": ({"precision": "bf16"}, "precision fp32 → bf16"),
    "groups": ({"groups": [(["w"], {"lr_multiplier": 0.5})]}, "groups 0 → 1"),
}


@pytest.fixture
def run(tmp_path):
    saved = session()
    saved.step(X, LABELS)
    saved.save_checkpoint(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("name", CHANGES)
def test_another_option_is_said_with_both_values(run, name, caplog):
    options, text = CHANGES[name]
    loaded = session(**options)
    with caplog.at_level(logging.WARNING, "steep"):
        loaded.load_checkpoint(run)
    (record,) = caplog.records
    assert record.getMessage() == f"options are others than in the checkpoint: {text}"
    loaded.save_checkpoint(run)
    caplog.clear()
    loaded.load_checkpoint(run)
    assert name == "lr" or not caplog.records


def test_what_changes_no_number_is_not_said(run, caplog):
    session(seed=4, check_finite=True, grad_norm=True, memory_limit="1GiB").load_checkpoint(run)
    assert not caplog.records


def test_another_decay_of_averages_is_said(tmp_path, caplog):
    session(ema_decay=0.9).save_checkpoint(tmp_path / "run")
    session(ema_decay=0.99).load_checkpoint(tmp_path / "run")
    assert "ema_decay 0.9 → 0.99" in caplog.text


def test_settings_of_a_group_are_said(tmp_path, caplog):
    def grouped(**settings):
        return session(groups=[(["w"], {"optimizer": "adamw", "lr": 0.1, **settings})])

    grouped().save_checkpoint(tmp_path / "run")
    grouped(weight_decay=0.3).load_checkpoint(tmp_path / "run")
    assert "groups[0].weight_decay 0 → 0.3" in caplog.text


def test_the_error_for_another_loss_names_it(run):
    with pytest.raises(steep.CheckpointError, match="loss softmax_cross_entropy → nll"):
        session(loss="nll").load_checkpoint(run)


def test_long_values_are_cut_and_compared(tmp_path, caplog):
    weights = [1.0 + i / 1000 for i in range(300)]
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 18]>
        g (float[n, 300] x) => (float[n, 300] y) <float[1] b = {0.5}> { y = Mul (x, b) }
        """
    )

    def long(values):
        options = {"loss": "softmax_cross_entropy", "class_weights": values, "trainable": ["b"]}
        return steep.TrainingSession(model, **options)

    long(weights).save_checkpoint(tmp_path / "run")
    long(weights).load_checkpoint(tmp_path / "run")
    assert not caplog.records
    long([*weights[:-1], 2.0]).load_checkpoint(tmp_path / "run")
    (record,) = caplog.records
    assert "class_weights [1, 1.001" in record.getMessage()
    assert len(record.getMessage()) < 300


# keywords of fit, and what it says after a run with batch=4
FITS = {
    "batch": ({"batch": 2}, "batch 4 → 2"),
    "accumulate": ({"batch": 4, "accumulate": 2}, "accumulate 1 → 2"),
    "shuffle": ({"batch": 4, "shuffle": False}, "shuffle True → False"),
    "seed": ({"batch": 4, "seed": 3}, "seed 0 → 3"),
}


@pytest.mark.parametrize("name", FITS)
def test_fit_says_what_it_reads_otherwise(tmp_path, name, caplog):
    options, text = FITS[name]
    session().fit((X, LABELS), batch=4, checkpoint=tmp_path / "run")
    loaded = session()
    loaded.load_checkpoint(tmp_path / "run")
    loaded.fit((X, LABELS), **options)
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert record.getMessage() == f"fit: options are others than in the checkpoint: {text}"
    again = session()
    again.load_checkpoint(tmp_path / "run")
    caplog.clear()
    again.fit((X, LABELS), batch=4)
    again.fit((X, LABELS), **options)  # the checkpoint is long ago
    assert not [r for r in caplog.records if r.levelno == logging.WARNING]

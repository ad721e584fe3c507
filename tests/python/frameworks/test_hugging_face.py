"""Hugging Face's Trainer around an ORTModule: the one changed line, compared with PyTorch alone."""

import copy

import numpy as np
import pytest

import steep

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from hugging_face_trainer import (  # noqa: E402
    assert_same_weights,
    language_model,
    rows,
    trainer_of,
)


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


SMOOTH = {"label_smoothing_factor": 0.2}
ACCUMULATED = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}
NOISY = {"neftune_noise_alpha": 5.0}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_checkpointing": True},
        {**SMOOTH, **ACCUMULATED, **NOISY},
        *(pytest.param(alone, marks=pytest.mark.matrix) for alone in (SMOOTH, ACCUMULATED, NOISY)),
    ],
    ids=lambda o: "-".join(o) or "plain",
)
def test_trains_as_pytorch(tmp_path, options):
    model = language_model()
    ours = trainer_of(steep.ORTModule(copy.deepcopy(model)), tmp_path, **options)
    theirs = trainer_of(model, tmp_path, **options)
    for each in (ours, theirs):
        transformers.set_seed(3)
        each.train()
    np.testing.assert_allclose(losses(ours), losses(theirs), rtol=1e-5)
    assert_same_weights(ours.model, model)
    assert isinstance(ours.model, steep.ORTModule)
    assert ours.model.report().whole and ours.model.report().graphs
    if options:
        return
    found, expected = ours.evaluate(), theirs.evaluate()
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-5)
    np.testing.assert_allclose(
        ours.predict(rows(4)).predictions, theirs.predict(rows(4)).predictions, atol=2e-4
    )


@pytest.mark.matrix
def test_trains_by_adafactor(tmp_path):
    """Matrices: it divides the gradients of vectors, some of which are noise, by their size."""
    model = language_model()
    for p in model.parameters():
        p.requires_grad_(p.ndim > 1)
    options = {"optim": "adafactor", "learning_rate": 0.01}
    ours = trainer_of(steep.ORTModule(copy.deepcopy(model)), tmp_path, **options)
    theirs = trainer_of(model, tmp_path, **options)
    for each in (ours, theirs):
        transformers.set_seed(3)
        each.train()
    np.testing.assert_allclose(losses(ours), losses(theirs), rtol=1e-4)
    assert_same_weights(ours.model, model, 1e-4)
    assert ours.model.report().whole and ours.model.report().graphs


def test_trains_in_bfloat16(tmp_path):
    model = language_model()
    ours = trainer_of(steep.ORTModule(copy.deepcopy(model)), tmp_path, bf16=True)
    theirs = trainer_of(model, tmp_path, bf16=True)
    for each in (ours, theirs):
        transformers.set_seed(3)
        each.train()
    np.testing.assert_allclose(losses(ours), losses(theirs), rtol=1e-2)


@pytest.mark.matrix
def test_checkpoints_resume_and_load_with_tied_weights(tmp_path):
    model = language_model()
    options = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    ours = trainer_of(steep.ORTModule(copy.deepcopy(model)), tmp_path / "ours", **options)
    theirs = trainer_of(copy.deepcopy(model), tmp_path / "theirs", **options)
    for each in (ours, theirs):
        transformers.set_seed(3)
        each.train()
    assert_same_weights(ours.model, theirs.model)
    again = trainer_of(steep.ORTModule(copy.deepcopy(model)), tmp_path / "ours", **options)
    again.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-3"))
    np.testing.assert_allclose(losses(again), losses(ours), rtol=1e-5)
    ours.save_model(tmp_path / "saved")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert_same_weights(loaded, ours.model.module, 0)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


def test_generates_as_pytorch():
    model = language_model().eval()
    words = torch.arange(6)[None]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(words, **options)
    torch.testing.assert_close(steep.ORTModule(model).generate(words, **options), expected)

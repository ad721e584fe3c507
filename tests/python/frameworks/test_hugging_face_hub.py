"""What Hugging Face's Trainer leaves behind around an ORTModule: the best model, cards, pushes."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from hugging_face_trainer import assert_same_weights, language_model, rows, trainer_of  # noqa: E402

import steep  # noqa: E402


def both(folder, **options):
    """Two trainers of the same model: ours and PyTorch's."""
    model = language_model()
    ours = trainer_of(steep.ORTModule(copy.deepcopy(model)), folder / "ours" / "m", **options)
    theirs = trainer_of(model, folder / "theirs" / "m", **options)
    for each in (ours, theirs):
        transformers.set_seed(3)
        each.train()
    return ours, theirs


@pytest.mark.matrix
def test_the_best_model_is_loaded_though_it_is_not_the_last(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    ours, theirs = both(tmp_path, **options, greater_is_better=True)
    assert Path(ours.state.best_model_checkpoint).name == "checkpoint-2"
    assert Path(theirs.state.best_model_checkpoint).name == "checkpoint-2"
    assert_same_weights(ours.model, theirs.model)
    kept = transformers.GPT2LMHeadModel.from_pretrained(ours.state.best_model_checkpoint)
    assert_same_weights(ours.model, kept, 0)
    # what the engine holds is what was loaded
    found, expected = ours.predict(rows(4)), theirs.predict(rows(4))
    np.testing.assert_allclose(found.predictions, expected.predictions, atol=2e-4)
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], rel=1e-5)
    assert found.metrics["test_loss"] == pytest.approx(ours.state.best_metric, rel=1e-5)


def without_times(card):
    return re.sub(r"(?m)^.*(Runtime|per second).*$", "", card)


@pytest.mark.matrix
def test_cards_and_pushes(tmp_path, monkeypatch):
    """To a hub that is not there: what would be sent is what PyTorch's would be."""
    sent = []

    class Hub:
        def create_repo(self, name, **_):
            return type("Url", (), {"repo_id": f"somebody/{name}"})()

        def upload_folder(self, **what):
            folder = Path(what["folder_path"])
            sent.append((what["repo_id"], {p.name: p.read_bytes() for p in folder.iterdir()}))

        def create_commit(self, *arguments, **what):
            sent.append((what["repo_id"], sorted(o.path_in_repo for o in what["operations"])))

    monkeypatch.setattr("transformers.trainer.hf_api", Hub)
    fields = {
        "language": "en", "license": "mit", "tags": "words", "finetuned_from": "somebody/gpt",
        "tasks": "text-generation", "dataset": "some words", "dataset_args": "all of them",
    }  # fmt: skip
    for each in both(tmp_path, eval_strategy="steps", eval_steps=3):
        each.model.add_model_tags(["steep"])
        each.push_to_hub(model_name="m", **fields)
    (name, ours), (other, theirs) = sent
    assert name == other == "somebody/m"
    assert set(ours) == set(theirs) >= {"README.md", "config.json", "model.safetensors"}
    card = ours["README.md"].decode()
    assert without_times(card) == without_times(theirs["README.md"].decode())
    assert all(said in card for said in ("license: mit", "- words", "- steep", "somebody/gpt"))
    assert ours["config.json"] == theirs["config.json"]
    assert b"GPT2LMHeadModel" in ours["config.json"] and b"ORTModule" not in ours["config.json"]


def test_a_sequence_is_generated_while_evaluating(tmp_path):
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=49,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    arguments = transformers.Seq2SeqTrainingArguments(
        str(tmp_path), report_to="none", use_cpu=True, disable_tqdm=True,
        predict_with_generate=True, generation_max_length=6,
    )  # fmt: skip
    found, expected = (
        transformers.Seq2SeqTrainer(
            model=each, args=arguments, data_collator=transformers.default_data_collator
        ).predict(rows(4))
        for each in (steep.ORTModule(copy.deepcopy(model)), model)
    )
    np.testing.assert_array_equal(found.predictions, expected.predictions)
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], rel=1e-4)

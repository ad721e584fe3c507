"""A small language model and Hugging Face's Trainer of it."""

import numpy as np
import torch
import transformers

WORDS = 50


def language_model():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def rows(count=16):
    rng = np.random.default_rng(0)
    words = rng.integers(0, WORDS, (count, 8))
    return [{"input_ids": w, "labels": w, "not_read": "by forward"} for w in words.tolist()]


def trainer_of(model, folder, **options):
    settings = {
        "per_device_train_batch_size": 4, "max_steps": 6, "learning_rate": 0.1, "optim": "sgd",
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True,
        "disable_tqdm": True, "seed": 3,
    }  # fmt: skip
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(str(folder), **{**settings, **options}),
        train_dataset=rows(),
        eval_dataset=rows(4),
        data_collator=transformers.default_data_collator,
    )


def assert_same_weights(actual, expected, tolerance=2e-5):
    for (name, p), q in zip(actual.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=name)

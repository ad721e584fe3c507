"""The four works that `make bench` times: models, batches, and the matrix products of one step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 28782
BPTT, BATCH = 35, 20


@dataclass(frozen=True)
class Product:
    """`count` products of a [batch, m, k] by a [batch, k, n] array."""

    m: int
    n: int
    k: int
    batch: int = 1
    count: int = 1


def _training(m: int, n: int, k: int, batch: int = 1, count: int = 1) -> list[Product]:
    """Forward, the gradient of the left operand, and the gradient of the right one."""
    return [
        Product(m, n, k, batch, count),
        Product(m, k, n, batch, count),
        Product(k, n, m, batch, count),
    ]


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    build: Callable[[], tuple[Any, tuple[Any, ...], Callable[..., Any]]]
    """Returns the module, the arguments of its forward, and loss(forward's result)."""
    products: list[Product] = field(default_factory=list)
    learning_rate: float = 1e-3


def transformer_lm() -> tuple[Any, tuple[Any, ...], Callable[..., Any]]:
    import torch
    from torch import nn

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "transformer_lm"))
    from model import TransformerModel, causal_mask

    tokens = torch.randint(0, VOCABULARY, (BPTT, BATCH))
    targets = torch.randint(0, VOCABULARY, (BPTT * BATCH,))
    criterion = nn.CrossEntropyLoss()
    return (
        TransformerModel(VOCABULARY),
        (tokens, causal_mask(BPTT)),
        lambda logits: criterion(logits.view(-1, VOCABULARY), targets),
    )


def _with_labels(model: Any, vocabulary: int) -> tuple[Any, tuple[Any, ...], Callable[..., Any]]:
    import torch
    from torch import nn

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, labels: Any) -> Any:
            out = self.model(input_ids=input_ids, labels=labels)
            return out.loss, out.logits

    ids = torch.randint(0, vocabulary, (8, 128))
    return WithLoss(), (ids, ids), lambda out: out[0]


def bert() -> tuple[Any, tuple[Any, ...], Callable[..., Any]]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=4, hidden_size=512, num_attention_heads=8, intermediate_size=2048
    )
    return _with_labels(BertForMaskedLM(config), config.vocab_size)


def gpt2() -> tuple[Any, tuple[Any, ...], Callable[..., Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, n_embd=512, n_head=8)
    return _with_labels(GPT2LMHeadModel(config), config.vocab_size)


def _encoder_products(
    tokens: int, layers: int, width: int, inner: int, heads: int, length: int
) -> list[Product]:
    head = width // heads
    sequences = tokens // length
    return [
        *_training(tokens, 3 * width, width, count=layers),
        *_training(length, length, head, batch=sequences * heads, count=layers),
        *_training(length, head, length, batch=sequences * heads, count=layers),
        *_training(tokens, width, width, count=layers),
        *_training(tokens, inner, width, count=layers),
        *_training(tokens, width, inner, count=layers),
    ]


WORKS = {
    "lm": Work(
        "lm",
        "transformer LM, 28,782 words, 35×20",
        transformer_lm,
        [*_encoder_products(700, 2, 200, 200, 2, 35), *_training(700, VOCABULARY, 200)],
    ),
    "bert": Work(
        "bert",
        "BERT MLM 4×512, 8×128",
        bert,
        [
            *_encoder_products(1024, 4, 512, 2048, 8, 128),
            *_training(1024, 512, 512),
            *_training(1024, 30522, 512),
        ],
    ),
    "gpt2": Work(
        "gpt2",
        "GPT-2 4×512, 8×128",
        gpt2,
        [*_encoder_products(1024, 4, 512, 2048, 8, 128), *_training(1024, 50257, 512)],
    ),
}

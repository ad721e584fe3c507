"""The four works that `make bench` times: models, batches, and the matrix products of one step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
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

    class PositionalEncoding(nn.Module):
        def __init__(self, width: int, dropout: float, longest: int = 5000) -> None:
            super().__init__()
            self.dropout = nn.Dropout(dropout)
            position = torch.arange(longest).unsqueeze(1)
            rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
            table = torch.zeros(longest, 1, width)
            table[:, 0, 0::2] = torch.sin(position * rate)
            table[:, 0, 1::2] = torch.cos(position * rate)
            self.register_buffer("table", table)

        def forward(self, x: Any) -> Any:
            return self.dropout(x + self.table[: x.size(0)])

    class TransformerModel(nn.Module):
        def __init__(self, width: int = 200, heads: int = 2, layers: int = 2) -> None:
            super().__init__()
            self.width = width
            self.embedding = nn.Embedding(VOCABULARY, width)
            self.position = PositionalEncoding(width, 0.2)
            layer = nn.TransformerEncoderLayer(width, heads, width, 0.2)
            self.encoder = nn.TransformerEncoder(layer, layers)
            self.decoder = nn.Linear(width, VOCABULARY)

        def forward(self, tokens: Any, mask: Any) -> Any:
            x = self.position(self.embedding(tokens) * math.sqrt(self.width))
            return self.decoder(self.encoder(x, mask))

    tokens = torch.randint(0, VOCABULARY, (BPTT, BATCH))
    targets = torch.randint(0, VOCABULARY, (BPTT * BATCH,))
    mask = nn.Transformer.generate_square_subsequent_mask(BPTT)
    criterion = nn.CrossEntropyLoss()
    return (
        TransformerModel(),
        (tokens, mask),
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

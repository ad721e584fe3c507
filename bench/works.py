"""The models that `make bench` times: batches, losses, and the matrix products of one step."""

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


def training_products(m: int, n: int, k: int, batch: int = 1, count: int = 1) -> list[Product]:
    """Forward, the gradient of the left operand, and the gradient of the right one."""
    return [
        Product(m, n, k, batch, count),
        Product(m, k, n, batch, count),
        Product(k, n, m, batch, count),
    ]


@dataclass(frozen=True)
class Task:
    """A model, the arguments of its forward, and its loss."""

    model: Any
    inputs: tuple[Any, ...]
    criterion: Callable[[Any, Any], Any] | None = None
    """Of the model's result and the target; None: the model returns its loss first."""
    target: Any = None

    def loss(self, result: Any) -> Any:
        return result[0] if self.criterion is None else self.criterion(result, self.target)

    def with_loss_inside(self) -> Task:
        """The same, in one module that returns the loss alone."""
        from torch import nn

        class WithLoss(nn.Module):
            def __init__(self, task: Task) -> None:
                super().__init__()
                self.model, self.criterion = task.model, task.criterion

            def forward(self, *inputs: Any) -> Any:
                *arguments, target = inputs
                return (self.criterion(self.model(*arguments), target),)

        return Task(WithLoss(self), (*self.inputs, self.target))


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    build: Callable[[], Task]
    products: list[Product] = field(default_factory=list)
    loss_outside: bool = False
    """The loss is computed outside the model, so a variant with it inside is timed as well."""


def transformer_lm() -> Task:
    import torch
    from torch import nn

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "transformer_lm"))
    from model import TransformerModel, causal_mask

    tokens = torch.randint(0, VOCABULARY, (BPTT, BATCH))
    targets = torch.randint(0, VOCABULARY, (BPTT * BATCH,))
    cross_entropy = nn.CrossEntropyLoss()

    def criterion(logits: Any, target: Any) -> Any:
        return cross_entropy(logits.view(-1, VOCABULARY), target)

    return Task(TransformerModel(VOCABULARY), (tokens, causal_mask(BPTT)), criterion, targets)


def with_labels(model: Any, shape: tuple[int, int] = (8, 128)) -> Task:
    """A language model of `transformers`, its loss inside, on random tokens."""
    import torch
    from torch import nn

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, labels: Any) -> Any:
            out = self.model(input_ids=input_ids, labels=labels)
            return out.loss, out.logits

    ids = torch.randint(0, model.config.vocab_size, shape)
    return Task(WithLoss(), (ids, ids))


def bert_model() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=4, hidden_size=512, num_attention_heads=8, intermediate_size=2048
    )
    return BertForMaskedLM(config)


def gpt2_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, n_embd=512, n_head=8)
    return GPT2LMHeadModel(config)


def image_classifier(model: Any, classes: int = 10) -> Task:
    """A classifier of `transformers` on 32 images of 3 x 64 x 64."""
    import torch
    from torch import nn

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Any) -> Any:
            return self.model(images).logits

    images, labels = torch.randn(32, 3, 64, 64), torch.randint(0, classes, (32,))
    return Task(Scores(), (images,), nn.CrossEntropyLoss(), labels)


def resnet() -> Task:
    """As ResNet-18: He et al. 2016."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=10,
    )
    return image_classifier(ResNetForImageClassification(config))


def vit() -> Task:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=64,
        patch_size=8,
        num_labels=10,
    )
    return image_classifier(ViTForImageClassification(config))


def encoder_products(
    tokens: int, layers: int, width: int, inner: int, heads: int, length: int
) -> list[Product]:
    """Return the products of a step through the layers of a transformer."""
    head = width // heads
    sequences = tokens // length
    return [
        *training_products(tokens, 3 * width, width, count=layers),
        *training_products(length, length, head, batch=sequences * heads, count=layers),
        *training_products(length, head, length, batch=sequences * heads, count=layers),
        *training_products(tokens, width, width, count=layers),
        *training_products(tokens, inner, width, count=layers),
        *training_products(tokens, width, inner, count=layers),
    ]


WORKS = {
    "lm": Work(
        "lm",
        "transformer LM, 28,782 words, 35×20",
        transformer_lm,
        [*encoder_products(700, 2, 200, 200, 2, 35), *training_products(700, VOCABULARY, 200)],
        loss_outside=True,
    ),
    "bert": Work(
        "bert",
        "BERT MLM 4×512, 8×128",
        lambda: with_labels(bert_model()),
        [
            *encoder_products(1024, 4, 512, 2048, 8, 128),
            *training_products(1024, 512, 512),
            *training_products(1024, 30522, 512),
        ],
    ),
    "gpt2": Work(
        "gpt2",
        "GPT-2 4×512, 8×128",
        lambda: with_labels(gpt2_model()),
        [*encoder_products(1024, 4, 512, 2048, 8, 128), *training_products(1024, 50257, 512)],
    ),
    "resnet": Work("resnet", "ResNet-18, 32×3×64×64", resnet, loss_outside=True),
    "vit": Work("vit", "ViT 6×192, 32×3×64×64", vit, loss_outside=True),
}

"""Small models of many kinds, with random weights, batch and labels: what people export."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Case:
    """A model that maps `inputs` to class scores [..., classes], and labels for them."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    labels: Tensor

    def loss(self, scores: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, -2), self.labels.flatten())


class Scores(nn.Module):
    """Only the scores of a model of `transformers`."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, return_dict=True).logits


class LstmTagger(nn.Module):
    """A label for each word, from words on both sides."""

    def __init__(self, words: int, tags: int):
        super().__init__()
        self.embedding = nn.Embedding(words, 12)
        self.lstm = nn.LSTM(12, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(20, tags)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(ids))[0])


class GruLanguageModel(nn.Module):
    def __init__(self, words: int):
        super().__init__()
        self.embedding = nn.Embedding(words, 16)
        self.gru = nn.GRU(16, 14, batch_first=True)
        self.head = nn.Linear(14, words)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.gru(self.embedding(ids))[0])


class UNet(nn.Module):
    """Ronneberger, Fischer & Brox 2015, two levels: one way up is Resize, the other
    ConvTranspose."""

    def __init__(self, classes: int):
        super().__init__()

        def block(channels: int, out: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()
            )

        self.first, self.second, self.third = block(3, 8), block(8, 12), block(12, 16)
        self.down = nn.MaxPool2d(2)
        self.wide = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.fourth, self.fifth = block(28, 12), block(16, 8)
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.second(self.down(a))
        c = self.wide(self.third(self.down(b)))
        d = self.up(self.fourth(torch.cat([b, c], 1)))
        return self.head(self.fifth(torch.cat([a, d], 1))).permute(0, 2, 3, 1)


def image_case(model: nn.Module, size: int = 32, classes: int = 5) -> Case:
    return Case(model, (torch.randn(2, 3, size, size),), torch.randint(classes, (2,)))


def word_case(model: nn.Module, words: int, classes: int) -> Case:
    return Case(model, (torch.randint(words, (2, 9)),), torch.randint(classes, (2, 9)))


def resnet() -> Case:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 2], layer_type="basic", num_labels=5
    )
    return image_case(Scores(transformers.ResNetForImageClassification(config)))


def mobilenet_v2() -> Case:
    config = transformers.MobileNetV2Config(
        image_size=32, depth_multiplier=0.25, num_labels=5, classifier_dropout_prob=0
    )
    return image_case(Scores(transformers.MobileNetV2ForImageClassification(config)))


def convnext() -> Case:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1], num_labels=5, image_size=64
    )
    return image_case(Scores(transformers.ConvNextForImageClassification(config)), 64)


def efficientnet() -> Case:
    config = transformers.EfficientNetConfig(
        image_size=32, width_coefficient=0.2, depth_coefficient=0.2, num_labels=5,
        hidden_dim=256, dropout_rate=0, drop_connect_rate=0,
    )  # fmt: skip
    return image_case(Scores(transformers.EfficientNetForImageClassification(config)))


def vit() -> Case:
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        image_size=32, patch_size=8, num_labels=5,
    )  # fmt: skip
    return image_case(Scores(transformers.ViTForImageClassification(config)))


def distilbert() -> Case:
    config = transformers.DistilBertConfig(
        vocab_size=67, max_position_embeddings=16, n_layers=2, n_heads=3, dim=24, hidden_dim=48
    )
    return word_case(Scores(transformers.DistilBertForMaskedLM(config)), 67, 67)


def lstm_tagger() -> Case:
    return word_case(LstmTagger(53, 7), 53, 7)


def gru_language_model() -> Case:
    return word_case(GruLanguageModel(53), 53, 53)


def unet() -> Case:
    return Case(UNet(4), (torch.randn(2, 3, 16, 16),), torch.randint(4, (2, 16, 16)))


ZOO: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (
        resnet,
        mobilenet_v2,
        convnext,
        efficientnet,
        vit,
        distilbert,
        lstm_tagger,
        gru_language_model,
        unet,
    )
}


def build(name: str) -> Case:
    """The case in inference mode: no dropout, batch norm by its running statistics."""
    torch.manual_seed(0)
    case = ZOO[name]()
    case.model.eval()
    for module in case.model.modules():
        if isinstance(module, nn.BatchNorm2d):  # not 0 and 1, which hide mistakes
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    # PyTorch's tracing exporter makes one initializer of all tensors that are equal.
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return case

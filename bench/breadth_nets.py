"""Modules of bench/breadth_models.py that no library brings: small ones of well-known papers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Adapted(nn.Module):
    """LoRA (Hu et al. 2021): a frozen layer, and a trained product of low rank."""

    def __init__(self, layer: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x)) * 2.0


class Block(nn.Sequential):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__(
            nn.Conv2d(channels, out, 3, padding=1),
            nn.GroupNorm(8, out),
            nn.SiLU(),
            nn.Conv2d(out, out, 3, padding=1),
            nn.GroupNorm(8, out),
            nn.SiLU(),
        )


class UNet(nn.Module):
    """Ronneberger et al. 2015, three levels, upsampled bilinearly."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down = nn.ModuleList([Block(3, width), Block(width, 2 * width)])
        self.bottom = Block(2 * width, 4 * width)
        self.up = nn.ModuleList([Block(6 * width, 2 * width), Block(3 * width, width)])
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sides = []
        for block in self.down:
            sides.append(block(x))
            x = F.max_pool2d(sides[-1], 2)
        x = self.bottom(x)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = block(torch.cat([x, sides.pop()], 1))
        return self.head(x)


class Recurrent(nn.Module):
    """Words, recurrent layers, scores of words."""

    def __init__(self, layer: nn.Module, width: int, words: int) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(words, width), layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.words(ids))[0])


class Convolutions(nn.Module):
    """Dilated causal convolutions over time (Bai et al. 2018)."""

    def __init__(self, width: int = 96, layers: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(
            [nn.Conv1d(width, width, 3, dilation=2**i) for i in range(layers)]
        )
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + F.relu(layer(F.pad(x, (2 * layer.dilation[0], 0))))
        return self.head(x)


class Messages(nn.Module):
    """Gilmer et al. 2017: sums of messages over edges, by index_add."""

    def __init__(self, width: int = 96, rounds: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.message = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(rounds)])
        self.update = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(rounds)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x))
        source, target = edges
        for message, update in zip(self.message, self.update, strict=True):
            messages = F.relu(message(torch.cat([x[source], x[target]], 1)))
            x = x + F.relu(
                update(torch.cat([x, torch.zeros_like(x).index_add(0, target, messages)], 1))
            )
        return self.head(x)


class Recommender(nn.Module):
    """Naumov et al. 2019: bags of embeddings, products of pairs, a perceptron."""

    def __init__(self, tables: int = 8, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            [nn.EmbeddingBag(5000, width, mode="sum") for _ in range(tables)]
        )
        self.dense = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = self.dense(dense)
        all_of = torch.stack([x, *(t(ids[:, i]) for i, t in enumerate(self.tables))], 1)
        products = (all_of @ all_of.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, products], 1))[:, 0]


class Autoencoder(nn.Module):
    """Kingma & Welling 2013, of convolutions and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1),
            nn.BatchNorm2d(32),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.BatchNorm2d(64),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64 * 64, 2 * 64),
        )
        self.first = nn.Linear(64, 64 * 64)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 4, 2, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        picture = self.decoder(self.first(z).view(-1, 64, 8, 8))
        apart = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()
        return F.mse_loss(picture, x) + 0.01 * apart


class Field(nn.Module):
    """Mildenhall et al. 2020: a perceptron of sines and cosines of positions."""

    def __init__(self, octaves: int = 8, width: int = 128) -> None:
        super().__init__()
        self.register_buffer("scales", math.pi * 2.0 ** torch.arange(octaves))
        inner = [nn.Linear(6 * octaves, width), nn.ReLU()]
        for _ in range(4):
            inner += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*inner, nn.Linear(width, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = (x[..., None] * self.scales).flatten(1)
        return self.layers(torch.cat([angles.sin(), angles.cos()], 1)).sigmoid()


class Points(nn.Module):
    """Qi et al. 2017: layers per point, and the maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, out in ((3, 64), (64, 128), (128, 512)):
            layers += [nn.Conv1d(channels, out, 1), nn.BatchNorm1d(out), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.points(x).amax(2))

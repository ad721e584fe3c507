"""The transformer language model of PyTorch's tutorial: its forward takes the mask."""

import math

import torch
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    """Adds sines and cosines of the position (Vaswani et al. 2017, section 3.5)."""

    def __init__(self, width: int, dropout: float = 0.1, max_length: int = 5000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_length).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(max_length, 1, width)
        table[:, 0, 0::2] = torch.sin(position * rate)
        table[:, 0, 1::2] = torch.cos(position * rate)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        """x: [length, batch, width]."""
        return self.dropout(x + self.table[: x.size(0)])


class TransformerModel(nn.Module):
    """Predicts the next word at every position."""

    def __init__(
        self,
        words: int,
        *,
        width: int = 200,
        heads: int = 2,
        hidden: int = 200,
        layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(words, width)
        self.position = PositionalEncoding(width, dropout)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, src: Tensor, mask: Tensor) -> Tensor:
        """Score the words: int64 [length, batch], [length, length] → [length, batch, words]."""
        x = self.position(self.embedding(src) * math.sqrt(self.width))
        return self.decoder(self.encoder(x, mask))


def causal_mask(length: int) -> Tensor:
    """Minus infinity above the diagonal: no position sees the words after it."""
    return nn.Transformer.generate_square_subsequent_mask(length)

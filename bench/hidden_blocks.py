"""Attention that leaves out blocks which masks hide, and heads that read one token.

    python bench/hidden_blocks.py
    python bench/hidden_blocks.py --length 2048 --document 512 --turns 20

A decoder of 4 layers of 512, one sequence of 1,024 tokens over 1,000 words, fused AdamW. Masks are
inputs: every token is seen, causal, a causal window, packed documents. Last, a classifier of the
first token of 8 sequences of 128. Contestants take one step each in turn, in one process:
ORTModule, and PyTorch as it comes. Medians in milliseconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from turns import keep_memory, print_medians

WORDS, WIDTH, HEADS, LAYERS = 1000, 512, 8, 4


def contestants(length: int, document: int, window: int) -> dict[str, Callable[[], None]]:
    import torch
    from torch import nn
    from torch.nn import functional

    import steep

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
            normal = self.first(x)
            q, k, v = (
                projection(normal).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
                for projection in (self.q, self.k, self.v)
            )
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.second(x))))

    class Decoder(nn.Module):
        def __init__(self, one_token: bool) -> None:
            super().__init__()
            self.one_token = one_token
            self.words = nn.Embedding(WORDS, WIDTH)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, ids: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x, visible)
            if self.one_token:
                x, ids = x[:, :1], ids[:, :1]
            return functional.cross_entropy(self.head(x).view(-1, WORDS), ids.reshape(-1))

    def stepping(
        model: nn.Module, run: nn.Module, rows: int, visible: torch.Tensor
    ) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step() -> None:
            optimizer.zero_grad()
            run(torch.randint(0, WORDS, (rows, visible.shape[-1])), visible).backward()
            optimizer.step()

        return step

    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    masks = {
        "all seen": (i >= 0) & (j >= 0),
        "causal": i >= j,
        "window": (i >= j) & (i - j < window),
        "documents": (i >= j) & (i // document == j // document),
    }
    works = {name: (1, mask[None, None], False) for name, mask in masks.items()}
    works["one token"] = (8, torch.ones(8, 1, 128, 128, dtype=torch.bool), True)
    steps = {}
    for name, (rows, pairs, one_token) in works.items():
        for engine in ("steep", "torch"):
            model = Decoder(one_token)
            run = steep.ORTModule(model) if engine == "steep" else model
            steps[f"{engine}, {name}"] = stepping(model, run, rows, pairs)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=1024, help="tokens of the sequence")
    parser.add_argument("--document", type=int, default=128, help="tokens of each document")
    parser.add_argument("--window", type=int, default=128, help="tokens that each one sees")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3, help="turns that do not count")
    args = parser.parse_args()
    keep_memory()
    steps = contestants(args.length, args.document, args.window)
    print_medians(steps, args.turns, warm_up=args.warm_up)


if __name__ == "__main__":
    main()

"""Dropout trains as PyTorch's does: validation perplexity of the demo, both ways, over seeds.

The same model, text, batches, AdamW, clipping and learning rates; the random masks differ, so
single runs differ too, and the means over the seeds are compared. Ends with exit code 1 when they
are more than 2 % apart.

    python bench/dropout_parity.py                       three seeds of three epochs
    python bench/dropout_parity.py --data FOLDER         on WikiText-2's files
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "transformer_lm"))

import data
from model import TransformerModel, causal_mask
from train import rate

import steep

BATCH, BPTT, DROPOUT, CLIP, PEAK_RATE = 20, 35, 0.2, 0.5, 2e-3
TOLERANCE = 0.02


def train(
    engine: str, corpus: data.Corpus, epochs: int, steps: int | None, seed: int
) -> tuple[float, float]:
    """Validation perplexity after the last epoch, and seconds."""
    torch.manual_seed(seed)
    words = len(corpus.words)
    model = TransformerModel(words, dropout=DROPOUT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.01, fused=True)
    cross_entropy = nn.CrossEntropyLoss()
    batches = list(data.batches(data.columns(corpus.train, BATCH), BPTT))[:steps]
    masks = {n: causal_mask(n) for n in range(1, BPTT + 1)}

    def criterion(scores: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(scores.view(-1, words), target)

    trainer: Any = None
    if engine == "steep":
        trainer = steep.trainer(
            model, criterion, optimizer, clip_norm=CLIP, predictions=False, seed=seed
        )

    def step(source: Tensor, target: Tensor) -> None:
        if trainer is not None:
            trainer.step(source, masks[len(source)], target)
            return
        optimizer.zero_grad()
        criterion(model(source, masks[len(source)]), target).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    @torch.no_grad()
    def loss_of(source: Tensor, target: Tensor) -> float:
        if trainer is not None:
            return float(trainer.evaluate(source, masks[len(source)], target)[0])
        return float(criterion(model(source, masks[len(source)]), target))

    start = time.monotonic()
    total = epochs * len(batches)
    for number in range(total):
        optimizer.param_groups[0]["lr"] = rate(number, total, PEAK_RATE)
        step(*batches[number % len(batches)])
        if sys.stderr.isatty():
            print(f"\r{engine} seed {seed}: {number + 1}/{total}", end="", file=sys.stderr)
    seconds = time.monotonic() - start
    model.eval()
    valid = list(data.batches(data.columns(corpus.valid, BATCH), BPTT))
    losses = sum(loss_of(source, target) * len(target) for source, target in valid)
    mean = losses / sum(len(target) for _, target in valid)
    return torch.tensor(mean).exp().item(), seconds


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with train.txt and test.txt")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of an epoch; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    corpus = data.load(args.data)
    print(f"{corpus.name}: {len(corpus.words):,} words, {args.epochs} epochs\n")
    print(
        "| seed | PyTorch perplexity | Steep perplexity | PyTorch s | Steep s |\n"
        + "|---" * 5
        + "|"
    )
    perplexities: dict[str, list[float]] = {"torch": [], "steep": []}
    for seed in range(args.seeds):
        runs = {e: train(e, corpus, args.epochs, args.steps, seed) for e in perplexities}
        for engine, (perplexity, _) in runs.items():
            perplexities[engine].append(perplexity)
        (theirs, their_s), (ours, our_s) = runs["torch"], runs["steep"]
        print(f"\r| {seed} | {theirs:.2f} | {ours:.2f} | {their_s:.0f} | {our_s:.0f} |", flush=True)
    theirs, ours = (statistics.mean(perplexities[e]) for e in ("torch", "steep"))
    difference = ours / theirs - 1
    print(f"| mean | {theirs:.2f} | {ours:.2f} | | |\n\ndifference {difference:+.2%}")
    return int(abs(difference) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())

"""Masked language modelling: what it is worth to compute only the rows whose labels count.

    python bench/labels.py
    python bench/labels.py --counted 0.5 --turns 20

BERT of 4 layers of 512 over 30,522 words, 8 rows of 128 tokens, fused AdamW. Contestants take one
step each in turn, in one process: ORTModule with all labels, with a part of them, and with that
part where the model returns all scores; PyTorch on that part as it comes, and with the rows
gathered by hand before the head. Medians in milliseconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from turns import keep_memory, print_medians

ROWS, LENGTH = 8, 128


def contestants(share: float) -> dict[str, Callable[[], None]]:
    import torch
    import torch.nn.functional as F
    from works import bert_model

    import steep

    def batch(part: float) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(0, 30522, (ROWS, LENGTH))
        return ids, torch.where(torch.rand(ids.shape) < part, ids, torch.full_like(ids, -100))

    def stepping(run: Callable[..., torch.Tensor], model: torch.nn.Module, part: float):
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step() -> None:
            optimizer.zero_grad()
            run(*batch(part)).backward()
            optimizer.step()

        return step

    def by_loss(model: torch.nn.Module, wrapped: torch.nn.Module) -> Callable[..., torch.Tensor]:
        return lambda ids, labels: wrapped(input_ids=ids, labels=labels).loss

    def by_hand(model: torch.nn.Module) -> Callable[..., torch.Tensor]:
        def loss(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            hidden = model.bert(input_ids=ids).last_hidden_state
            counts = labels != -100
            return F.cross_entropy(model.cls(hidden[counts]), labels[counts])

        return loss

    class Loss(torch.nn.Module):
        """Returns no scores, so that nobody reads those of ignored labels."""

        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, labels=labels).loss

    steps = {}
    for name, part in (("steep, every label", 1.0), ("steep", share)):
        model = Loss(bert_model())
        steps[name] = stepping(steep.ORTModule(model), model, part)
    model = bert_model()
    steps["steep, scores returned"] = stepping(by_loss(model, steep.ORTModule(model)), model, share)
    model = bert_model()
    steps["torch"] = stepping(by_loss(model, model), model, share)
    model = bert_model()
    steps["torch, rows gathered by hand"] = stepping(by_hand(model), model, share)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counted", type=float, default=0.15, help="part of the labels")
    parser.add_argument("--turns", type=int, default=10)
    args = parser.parse_args()
    keep_memory()
    print_medians(contestants(args.counted), args.turns, warm_up=3)


if __name__ == "__main__":
    main()

"""Padded batches: what it is worth to leave out the tokens that the mask hides.

    python bench/ragged.py
    python bench/ragged.py --shortest 20 --turns 20
    python bench/ragged.py --classify

BERT of 4 layers of 512 over 30,522 words, 8 rows of 32 to 128 tokens (uniform), padded to 128, with
15 % of the labels of real tokens; fused AdamW. Contestants take one step each in turn, in one
process: ORTModule without padding, with it, and with it and a loss that reads all tokens, so that
none may be left out; the same where every label counts; PyTorch as it comes, and with the rows that
count gathered by hand before the head. With --classify, rows of 20 to 128 tokens get one of two
classes each: from the mean of all tokens, so that none may be left out, or from the first token.
Medians in milliseconds.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from turns import keep_memory, print_medians

if TYPE_CHECKING:
    import torch

ROWS, LENGTH, WORDS = 8, 128, 30522


def stepping(
    model: torch.nn.Module, run: torch.nn.Module, batch: Callable[[], tuple[torch.Tensor, ...]]
) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        run(*batch()).backward()
        optimizer.step()

    return step


def contestants(shortest: int, share: float) -> dict[str, Callable[[], None]]:
    import torch
    from works import bert_model

    import steep

    def batch(shortest: int, share: float) -> tuple[torch.Tensor, ...]:
        ids = torch.randint(0, WORDS, (ROWS, LENGTH))
        lengths = torch.randint(shortest, LENGTH + 1, (ROWS, 1))
        mask = (torch.arange(LENGTH) < lengths).long()
        counts = (torch.rand(ids.shape) < share) & mask.bool()
        counts |= torch.tensor(share == 1)
        return ids, mask, torch.where(counts, ids, torch.full_like(ids, -100))

    class Loss(torch.nn.Module):
        """Returns no scores, so that nobody reads those of padding.

        ``all_read``: the loss does. ``by_hand``: the head gets the rows that count.
        """

        def __init__(self, all_read: bool = False, by_hand: bool = False) -> None:
            super().__init__()
            self.model = bert_model()
            self.all_read, self.by_hand = all_read, by_hand

        def forward(
            self, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            hidden = self.model.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            if self.by_hand:
                counts = labels != -100
                hidden, labels = hidden[counts], labels[counts]
            scores = self.model.cls(hidden).view(-1, WORDS)
            loss = torch.nn.functional.cross_entropy(scores, labels.view(-1))
            return loss + 0 * hidden.sum() if self.all_read else loss

    steps = {}
    for name, least, all_read, part in (
        ("steep, every label, all computed", shortest, True, 1),
        ("steep, no padding", LENGTH, False, share),
        ("steep, padding computed", shortest, True, share),
        ("steep, padding left out", shortest, False, share),
    ):
        model = Loss(all_read)
        batches = functools.partial(batch, least, part)
        steps[name] = stepping(model, steep.ORTModule(model), batches)
    for name, by_hand in (("torch", False), ("torch, rows gathered by hand", True)):
        model = Loss(by_hand=by_hand)
        steps[name] = stepping(model, model, functools.partial(batch, shortest, share))
    return steps


def classifiers() -> dict[str, Callable[[], None]]:
    import torch
    from works import bert_model

    import steep

    class Classifier(torch.nn.Module):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.bert, self.head, self.first = bert_model().bert, torch.nn.Linear(512, 2), first

        def forward(
            self, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            row = hidden[:, 0] if self.first else hidden.mean(1)
            return torch.nn.functional.cross_entropy(self.head(row), labels)

    def batch() -> tuple[torch.Tensor, ...]:
        lengths = torch.randint(20, LENGTH + 1, (ROWS, 1))
        mask = (torch.arange(LENGTH) < lengths).long()
        return torch.randint(0, WORDS, (ROWS, LENGTH)), mask, torch.randint(0, 2, (ROWS,))

    steps = {}
    for name, first in (("all tokens", False), ("first token", True)):
        model = Classifier(first)
        steps[f"steep, {name}"] = stepping(model, steep.ORTModule(model), batch)
    model = Classifier(first=True)
    steps["torch, first token"] = stepping(model, model, batch)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shortest", type=int, default=32, help="tokens of a row, at least")
    parser.add_argument("--counted", type=float, default=0.15, help="part of the labels")
    parser.add_argument(
        "--classify", action="store_true", help="classes of rows, no labels of words"
    )
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=5, help="turns that do not count")
    args = parser.parse_args()
    keep_memory()
    steps = classifiers() if args.classify else contestants(args.shortest, args.counted)
    print_medians(steps, args.turns, warm_up=args.warm_up)


if __name__ == "__main__":
    main()

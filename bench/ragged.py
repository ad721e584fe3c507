"""Padded batches: what it is worth to leave out the tokens that the mask hides.

    python bench/ragged.py
    python bench/ragged.py --shortest 20 --turns 20

BERT of 4 layers of 512 over 30,522 words, 8 rows of 32 to 128 tokens (uniform), padded to 128, with
15 % of the labels of real tokens; fused AdamW. Contestants take one step each in turn, in one
process: ORTModule without padding, with it, and with it and a loss that reads all tokens, so that
none may be left out; PyTorch as it comes. Medians in milliseconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from turns import keep_memory, print_medians

ROWS, LENGTH, WORDS = 8, 128, 30522


def contestants(shortest: int, share: float) -> dict[str, Callable[[], None]]:
    import torch
    from works import bert_model

    import steep

    def batch(shortest: int) -> tuple[torch.Tensor, ...]:
        ids = torch.randint(0, WORDS, (ROWS, LENGTH))
        lengths = torch.randint(shortest, LENGTH + 1, (ROWS, 1))
        mask = (torch.arange(LENGTH) < lengths).long()
        counts = (torch.rand(ids.shape) < share) & mask.bool()
        return ids, mask, torch.where(counts, ids, torch.full_like(ids, -100))

    class Loss(torch.nn.Module):
        """Returns no scores, so that nobody reads those of padding. ``all_read``: the loss does."""

        def __init__(self, all_read: bool = False) -> None:
            super().__init__()
            self.model = bert_model()
            self.all_read = all_read

        def forward(
            self, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            hidden = self.model.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            scores = self.model.cls(hidden).view(-1, WORDS)
            loss = torch.nn.functional.cross_entropy(scores, labels.view(-1))
            return loss + 0 * hidden.sum() if self.all_read else loss

    def stepping(model: torch.nn.Module, run: torch.nn.Module, least: int) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step() -> None:
            optimizer.zero_grad()
            run(*batch(least)).backward()
            optimizer.step()

        return step

    steps = {}
    for name, least, all_read in (
        ("steep, no padding", LENGTH, False),
        ("steep, padding computed", shortest, True),
        ("steep, padding left out", shortest, False),
    ):
        model = Loss(all_read)
        steps[name] = stepping(model, steep.ORTModule(model), least)
    model = Loss()
    steps["torch"] = stepping(model, model, shortest)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shortest", type=int, default=32, help="tokens of a row, at least")
    parser.add_argument("--counted", type=float, default=0.15, help="part of the labels")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=5, help="turns that do not count")
    args = parser.parse_args()
    keep_memory()
    print_medians(contestants(args.shortest, args.counted), args.turns, warm_up=args.warm_up)


if __name__ == "__main__":
    main()

"""A model and its loss as one module, and the modes of modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def the_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return a copy of the loss. This call marks the loss among the outputs of a captured graph."""
    return loss.clone()


class WithLoss(torch.nn.Module):
    """A module (inputs…, label) → (loss, result), or → loss without ``predictions``.

    Without a criterion, the model returns its loss as its first result or as ``"loss"``; further
    results are optional.
    """

    def __init__(
        self, model: torch.nn.Module, criterion: Callable[..., Any] | None, predictions: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.criterion = criterion
        self.predictions = predictions

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return (loss, result), or the loss alone."""
        if self.criterion is None:
            loss, result = _split(self.model(*inputs))
        else:
            *arguments, label = inputs
            result = self.model(*arguments)
            loss = self.criterion(result, label)
        loss = the_loss(loss)
        return (loss, result) if self.predictions else loss


def _split(result: Any) -> tuple[Any, Any]:
    """Return the loss and the rest of a model's result: a single value, or a collection."""
    if isinstance(result, torch.Tensor):
        return result, ()
    if isinstance(result, Mapping):
        return result["loss"], {k: v for k, v in result.items() if k != "loss"}
    loss, *rest = result
    return loss, rest[0] if len(rest) == 1 else tuple(rest)


@contextlib.contextmanager
def in_mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """Put a module and its submodules in a mode; restore each one's mode at the end."""
    before = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode

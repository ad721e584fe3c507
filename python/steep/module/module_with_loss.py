"""A module and its loss as one module, for ``ORTModule(module, loss=…)``."""

from __future__ import annotations

from collections.abc import Callable

import torch

from steep.errors import DataError


class ModuleWithLoss(torch.nn.Module):
    """A module (inputs…, label) → loss. It has the parameters of both."""

    def __init__(self, module: torch.nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.module = module
        self.training = module.training
        self.loss = loss

    def forward(self, *inputs: object, **named: object) -> torch.Tensor:
        """Return the loss of the module's result and the label, which is the last of ``inputs``."""
        if not inputs:
            raise DataError(
                "The call has no label for the loss.",
                node="label",
                expected="the label as the last argument without a name",
                received=f"arguments with names only: {', '.join(named) or 'none'}",
                remedy="call module(x, label); names are for the module's other inputs",
            )
        *arguments, label = inputs
        return self.loss(self.module(*arguments, **named), label)

"""A registered optimizer as ``steep.trainer`` takes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Optimizer(torch.optim.Optimizer):
    """Parameters and settings of an optimizer of one's own (``steep.register_optimizer``).

    It has parameter groups, schedulers and a ``state_dict`` as those of ``torch.optim`` have; its
    steps are those of ``steep.trainer``. A change of anything but ``lr`` compiles anew.

    >>> optimizer = steep.Optimizer("lion", model.parameters(), lr=1e-4)
    >>> t = steep.trainer(model, torch.nn.MSELoss(), optimizer)

    Args:
        name: that of the function.
        params: as for ``torch.optim``: parameters, or groups of them.
        lr: the rate.
        weight_decay: for an optimizer that has such an attribute.
        maximize: go along the gradient.
        attributes: numbers for the function's attributes.
    """

    def __init__(
        self,
        name: str,
        params: Iterable[Any],
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        maximize: bool = False,
        **attributes: float,
    ) -> None:
        self.name = name
        settings = {"weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, {"lr": lr, **settings, "attributes": dict(attributes)})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Raise RuntimeError: the update is a part of the trainer's compiled step."""
        raise RuntimeError("steep.Optimizer is stepped by steep.trainer; call trainer.step()")

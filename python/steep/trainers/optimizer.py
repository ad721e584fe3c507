"""A registered optimizer as an argument of ``steep.trainer``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Optimizer(torch.optim.Optimizer):
    """Parameters and settings of a registered optimizer (``steep.register_optimizer``).

    It has parameter groups and a ``state_dict`` and works with schedulers, like those of
    ``torch.optim``. ``steep.trainer`` does its steps. If a setting other than ``lr`` changes, the
    step is compiled again.

    >>> optimizer = steep.Optimizer("lion", model.parameters(), lr=1e-4)
    >>> t = steep.trainer(model, torch.nn.MSELoss(), optimizer)

    Args:
        name: name of the registered function.
        params: as for ``torch.optim``: parameters, or groups of them.
        lr: the learning rate.
        weight_decay: for an optimizer that has such an attribute.
        maximize: maximise the loss.
        attributes: values of the function's attributes.
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

    def step(self, closure: Callable[[], object] | None = None) -> None:  # type: ignore[override]
        """Raise RuntimeError: the update is a part of the trainer's compiled step."""
        raise RuntimeError("steep.Optimizer is stepped by steep.trainer; call trainer.step()")

"""Optimizers that PyTorch lacks, as arguments of ``steep.trainer``."""

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


class Lamb(torch.optim.Optimizer):
    """Parameters and settings of LAMB (You et al. 2020, arXiv:1904.00962).

    The step of a parameter is Adam's, scaled by the ratio of the norm of the parameter to that of
    the step. ``steep.trainer`` does the steps. All settings of a group but ``bias_correction`` and
    ``maximize`` may change at every step.

    >>> optimizer = steep.Lamb(model.parameters(), lr=6e-3, weight_decay=0.01)
    >>> t = steep.trainer(model, criterion, optimizer, clip_norm=1.0)

    Args:
        params: as for ``torch.optim``: parameters, or groups of them.
        lr: the learning rate.
        betas: decays of the means of the gradient and of its square, 0 to 1.
        eps: added to the denominator.
        weight_decay: this times the parameter is added to Adam's step, before the norm.
        bias_correction: divide the means by the sum of their weights, as in the paper.
        maximize: maximise the loss.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = True,
        maximize: bool = False,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"Invalid betas: {betas}; expected two numbers from 0 to below 1")
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"Invalid {name}: {value}; expected a number of at least 0")
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, {**numbers, "bias_correction": bias_correction, "maximize": maximize}
        )

    def step(self, closure: Callable[[], object] | None = None) -> None:  # type: ignore[override]
        """Raise RuntimeError: the update is a part of the trainer's compiled step."""
        raise RuntimeError("steep.Lamb is stepped by steep.trainer; call trainer.step()")

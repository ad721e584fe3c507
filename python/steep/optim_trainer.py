"""``steep.trainer``: a compiled step that reads a ``torch.optim`` object before every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from steep.errors import ModelError
from steep.exported import Exported
from steep.torch_trainer import SESSION_OPTIONS, Trainer

_REBUILT_IN_A_ROW = 3  # steps before each of which the optimizer was set anew
_KINDS = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a compiled step holds for. Rates are not part of it: they are its inputs.

    ``groups`` has, for each group of parameters, their identities and its weight decay.
    """

    kind: str
    shared: tuple[tuple[str, Any], ...]  # of all groups, by the names that sessions have for them
    groups: tuple[tuple[tuple[int, ...], float], ...]


def read_settings(optimizer: torch.optim.Optimizer) -> Settings:
    """Return what an optimizer is set to now.

    Raises:
        ModelError: it has no counterpart in the engine, or its groups differ in more than rate and
            weight decay.
    """
    kind = _KINDS.get(type(optimizer))
    if kind is None:
        raise ModelError(
            "The optimizer has no counterpart in the engine.",
            expected="torch.optim.SGD, Adam or AdamW",
            received=type(optimizer).__name__,
            remedy="use ORTModule, which works with any optimizer",
        )
    first = optimizer.param_groups[0]
    if kind == "adam" and first.get("decoupled_weight_decay"):
        kind = "adamw"
    keys = ("momentum", "dampening", "nesterov") if kind == "sgd" else ("betas", "eps")
    for group in optimizer.param_groups:
        for flag in ("amsgrad", "maximize", "differentiable"):
            if group.get(flag):
                raise ModelError(
                    f"The option {flag} of the optimizer has no counterpart in the engine."
                )
        if differing := [k for k in keys if group[k] != first[k]]:
            raise ModelError(
                "The optimizer's parameter groups differ in more than rate and weight decay.",
                received=", ".join(differing),
                remedy="use ORTModule, which works with any optimizer",
            )
    groups = tuple(
        (tuple(id(p) for p in group["params"] if p.requires_grad), float(group["weight_decay"]))
        for group in optimizer.param_groups
    )
    return Settings(kind, tuple((k, first[k]) for k in keys), groups)


def read_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the learning rate of each group."""
    return [float(group["lr"]) for group in optimizer.param_groups]


class _OptimTrainer(Trainer):
    """A trainer that believes a ``torch.optim`` object and the modes of the model's parts.

    Both are read before every step. Rates, of each group, are inputs of the compiled step; whatever
    else changes makes another, and moments are kept.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        criterion: Callable[..., Any] | None,
        optimizer: torch.optim.Optimizer,
        **options: Any,
    ) -> None:
        self._optimizer = optimizer
        self._more: dict[str, Any] = {k: options.pop(k) for k in SESSION_OPTIONS if k in options}
        self._rebuilt_in_a_row = 0
        super().__init__(model, criterion, self._read(), **options)

    def _read(self) -> dict[str, Any]:
        self._known = known = read_settings(self._optimizer)
        rates = read_rates(self._optimizer)
        decay = known.groups[0][1]
        return {
            "optimizer": known.kind,
            "lr": rates[0] if len(rates) == 1 else 1.0,
            "weight_decay": decay,
            **dict(known.shared),
            **self._more,
        }

    def _next_lr(self) -> float | None:
        # what PyTorch's schedulers look at to warn of a step() that was forgotten
        self._optimizer._opt_called = True
        rates = read_rates(self._optimizer)
        if len(rates) == 1:
            return rates[0]
        for i, rate in enumerate(rates):
            self.session.set_lr_multiplier(i, rate)
        return 1.0

    def _given_lr(self, lr: float) -> float:
        if len(self._optimizer.param_groups) == 1:
            return lr
        raise ModelError(
            "One rate is given for several groups of parameters.",
            expected="a rate for each group",
            received=str(lr),
            remedy='set group["lr"] of the optimizer\'s param_groups',
        )

    def _export(self, inputs: Sequence[torch.Tensor]) -> Exported:
        return self._export_as_it_is(inputs)

    def _groups(self, names: dict[str, str]) -> list[tuple[list[str], dict[str, float]]]:
        groups = self._optimizer.param_groups
        if len(groups) == 1:
            return []
        by_id = {id(p): names[n] for n, p in self._net.named_parameters() if n in names}
        return [
            (
                [by_id[id(p)] for p in group["params"] if id(p) in by_id],
                {"lr_multiplier": float(group["lr"]), "weight_decay": float(group["weight_decay"])},
            )
            for group in groups
        ]

    def _trained(self) -> set[str]:
        known = {i for ids, _ in self._known.groups for i in ids}
        return {n for n, p in self._net.named_parameters() if id(p) in known}

    def _modes(self) -> tuple[bool, ...]:
        return tuple(m.training for m in self._net.modules())

    def _believe(self, inputs: Sequence[torch.Tensor]) -> None:
        if self._session is None:
            return
        settings, modes = read_settings(self._optimizer), self._modes()
        if settings == self._known and modes == self._compiled_modes:
            self._rebuilt_in_a_row = 0
            return
        self._rebuilt_in_a_row += 1
        if self._rebuilt_in_a_row > _REBUILT_IN_A_ROW:
            raise ModelError(
                "The optimizer's settings change at every step.",
                expected="rates that change, and other settings now and then",
                received=str(dict(settings.shared)),
                remedy="OneCycleLR(cycle_momentum=False) leaves momentum alone; ORTModule works "
                "with any optimizer",
            )
        before, after = self._known, settings
        added = {i for ids, _ in after.groups for i in ids} - {
            i for ids, _ in before.groups for i in ids
        }
        dampened = dict(after.shared).get("dampening", 0) != 0
        if added and self.session.step_count > 0 and (after.kind != "sgd" or dampened):
            raise ModelError(
                "A parameter joins later than others, whose steps the optimizer counts alone.",
                expected="the parameters of the first step, or torch.optim.SGD",
                remedy="make a new trainer, or use ORTModule",
            )
        training = self._exported if modes == self._compiled_modes else None
        self._settings = self._read()
        if training is None:
            training = self._export(inputs)
        self._rebuild(training, list(inputs))


def trainer(
    model: torch.nn.Module,
    criterion: Callable[[Any, torch.Tensor], torch.Tensor] | None,
    optimizer: torch.optim.Optimizer,
    **options: Any,
) -> Trainer:
    """Compile a PyTorch model's whole step: forward, loss, backward and update.

    >>> t = steep.trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=1e-4))
    >>> loss, y_pred = t.step(x, y)

    Args:
        model: its parameters are updated in place.
        criterion: called with the model's result and the label; None when the model returns its
            loss first.
        optimizer: ``torch.optim.SGD``, ``Adam`` or ``AdamW``, read before every step: the rate of
            each group, weight decay, momentum and betas, which parameters it has and which of them
            want a gradient. Only rates may change at each step; what else changes compiles anew. It
            is not stepped itself, and its ``state`` stays empty: ``state_dict`` has the moments.
        options: ``clip_norm`` (bound of the gradients' global norm), ``predictions=False`` (return
            the loss alone), ``precision="bf16"`` or ``"fp16"`` (matrix products in 16 bits, weights
            in float32), ``loss_scale`` and ``loss_scale_window`` (with "fp16"),
            ``seed`` (of dropout), ``check_finite``, ``exporter``, ``opset``.

    ``train()`` and ``eval()`` of the model and its parts count as in a loop of PyTorch; parameters
    of the criterion are trained when the optimizer has them.

    Raises:
        ModelError: at a step, when the model cannot be exported or trained, or the optimizer
            changed in a way that the compiled step cannot follow.
    """
    return _OptimTrainer(model, criterion, optimizer, **options)

"""``FusedAdam``: Adam and AdamW over all parameters in one call of the engine."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from steep import _steep
from steep.compat.tensor_update import TensorUpdate
from steep.errors import DataError
from steep.optim_state import SharedState


class AdamWMode(enum.IntEnum):
    """Whose Adam it is: where weight decay comes in, and where epsilon.

    ADAM_L2_REGULARIZATION: decay is a part of the gradient, as in ``torch.optim.Adam``.
    ADAMW_TRANSFORMERS: decay after the update, of what is new; epsilon beside the root that is not
        corrected: transformers' AdamW.
    ADAMW_TORCH: decay before the update: ``torch.optim.AdamW``.
    """

    ADAM_L2_REGULARIZATION = 0
    ADAMW_TRANSFORMERS = 1
    ADAMW_TORCH = 2


class FusedAdam(torch.optim.Optimizer):
    """Adam whose step is one compiled program of the engine, for all parameters at once.

    ``state`` has PyTorch's names ("step", "exp_avg", "exp_avg_sq") and is the engine's own memory.
    The program is compiled at the first step, and anew when other parameters have gradients, or
    ``bias_correction`` changes.

    >>> optimizer = FusedAdam(model.parameters(), lr=1e-3)

    Args:
        params: as for ``torch.optim``: parameters of float32 or float64, or groups of them.
        lr, betas, eps, weight_decay: the numbers; they may change between steps.
        bias_correction: correct moments for having begun as zeros.
        adam_w_mode: an ``AdamWMode``, or its number.
        set_grad_none: ``zero_grad`` drops gradients, instead of filling them with zeros.

    Raises:
        ValueError: a number is out of range, or there is no such mode.
    """

    def __init__(  # noqa: PLR0917 (the order that users know)
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        adam_w_mode: AdamWMode | int = AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        mode = AdamWMode(adam_w_mode)
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name} must be at least 0, not {value}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), not {betas}")
        self._mode = mode
        self._set_grad_none = set_grad_none
        self._update: TensorUpdate | None = None
        self._shared: SharedState | None = None
        self._holds_for: list[Any] = []
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**numbers, "bias_correction": bias_correction, "step": 0})

    def __setstate__(self, state: dict[str, Any]) -> None:
        # what is compiled stays behind, in copies and in pickles
        super().__setstate__({**state, "_update": None, "_shared": None, "_holds_for": []})

    def __getstate__(self) -> dict[str, Any]:
        own = {"_mode": self._mode, "_set_grad_none": self._set_grad_none}
        return {**super().__getstate__(), **own}

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop gradients, or fill them with zeros: by default as ``set_grad_none`` said."""
        super().zero_grad(self._set_grad_none if set_to_none is None else set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the parameters that have gradients; return what ``closure`` gives.

        Raises:
            RuntimeError: a gradient is sparse.
            DataError: a parameter cannot be updated in place, or the rate and decay do not fit.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        groups = self._groups()
        if not groups:
            return result
        gradients = [p.grad for group in groups for p in group.parameters]
        if any(g.is_sparse for g in gradients):
            raise RuntimeError("FusedAdam takes no sparse gradients; torch.optim.SparseAdam does")
        update = self._compiled(groups, [self._options(group) for group in groups])
        pairs = zip(gradients, update.parameters.values(), strict=True)
        update.step([g.to(p.dtype).contiguous() for g, p in pairs])
        assert self._shared is not None
        self._shared.show()
        for settings in {id(group.settings): group.settings for group in groups}.values():
            settings["step"] += 1
        return result

    def _groups(self) -> list[_Group]:
        """Return what has gradients: parameters that learn alike, and made as many steps."""
        found = []
        for settings in self.param_groups:
            by_count: dict[int, list[torch.Tensor]] = {}
            told_apart = self._mode == AdamWMode.ADAMW_TRANSFORMERS
            for p in settings["params"]:
                if p.grad is not None:
                    count = int(self.state.get(p, {}).get("step", 0)) if told_apart else 0
                    by_count.setdefault(count, []).append(p)
            found += [_Group(settings, count, group) for count, group in by_count.items()]
        return found

    def _compiled(
        self, groups: list[_Group], options: list[_steep.OptimizerOptions]
    ) -> TensorUpdate:
        """Return the program for these parameters, with these numbers."""
        holds_for = [group.compiled_in() for group in groups]
        if self._update is not None and self._shared is not None and holds_for == self._holds_for:
            for i, numbers in enumerate(options):
                self._update.session.set_group(i, numbers)
            self._shared.agree()
            return self._update
        for group in groups:
            for p in group.parameters:
                p.data = p.data.contiguous()
        self._update = update = TensorUpdate(
            [
                ({f"{k}/{i}": p for i, p in enumerate(group.parameters)}, numbers)
                for k, (group, numbers) in enumerate(zip(groups, options, strict=True))
            ]
        )
        self._shared = SharedState(self, update.session, update.parameters)
        self._holds_for = [group.compiled_in() for group in groups]
        return update

    def _options(self, group: _Group) -> _steep.OptimizerOptions:
        """Return how a group learns in its next step.

        The kernel's step is PyTorch's AdamW: w(1 - r λ) - r √c₂ / c₁ · m / (√v + ε √c₂), where c₁
        and c₂ correct the moments, or are 1. Transformers' is said in its terms: its ε is divided
        by √c₂, and its decay, which is of what is new, (w - s d)(1 - k) = w(1 - k) - s(1 - k) d,
        comes before at a smaller rate.
        """
        settings = group.settings
        options = _steep.OptimizerOptions()
        options.kind = "adam" if self._mode == AdamWMode.ADAM_L2_REGULARIZATION else "adamw"
        options.beta1, options.beta2 = settings["betas"]
        options.bias_correction = bool(settings["bias_correction"])
        rate, decay, epsilon = (float(settings[k]) for k in ("lr", "weight_decay", "eps"))
        shrink = rate * decay if options.kind == "adamw" else 0.0
        if self._mode == AdamWMode.ADAMW_TRANSFORMERS:
            if shrink >= 1:
                raise DataError(
                    "The rate and the weight decay leave nothing of the weights.",
                    expected="lr * weight_decay below 1",
                    received=str(shrink),
                )
            rate *= 1 - shrink
            if options.bias_correction:
                epsilon /= math.sqrt(1 - options.beta2 ** (group.count + 1))
        if options.kind == "adamw":
            decay = shrink / rate if rate > 0 else 0.0
        options.lr, options.weight_decay, options.epsilon = rate, decay, epsilon
        return options


@dataclasses.dataclass
class _Group:
    """Parameters with gradients, and what they learn by."""

    settings: dict[str, Any]
    count: int  # of the steps that they have made
    parameters: list[torch.Tensor]

    def compiled_in(self) -> tuple[bool, list[tuple[int, int]]]:
        """Return what a program holds for: a flag, and parameters with memory of theirs."""
        addresses = [(id(p), p.data_ptr()) for p in self.parameters]
        return bool(self.settings["bias_correction"]), addresses

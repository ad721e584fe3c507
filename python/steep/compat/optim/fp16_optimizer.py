"""``FP16_Optimizer``: loss scaling, an overflow check and clipping around an optimizer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, get_total_norm

from steep.compat.notices import say_once
from steep.compat.optim.loss_scalers import DynamicLossScaler, LossScaler
from steep.torch_internals.operators import foreach_mul_

# Packages whose optimizers do all this themselves.
_SCALE_THEMSELVES = ("accelerate", "apex", "deepspeed", "megatron")
_OF_INNER = ("step", "param_groups", "state")  # attributes of the wrapped optimizer alone
_APEX_MARK = "_amp_stash"  # attribute that apex.amp.initialize adds to a PyTorch optimizer


def FP16_Optimizer(
    optimizer: torch.optim.Optimizer,
    *,
    loss_scaler: LossScaler | None = None,
    max_norm: float = 0.0,
    **unused: object,
) -> torch.optim.Optimizer:
    """Return an optimizer that scales the loss, and skips a step whose gradients overflow.

    >>> optimizer = FP16_Optimizer(FusedAdam(model.parameters()), max_norm=1.0)
    >>> optimizer.backward(loss)
    >>> optimizer.step()

    If users call ``loss.backward()`` themselves, gradients are not scaled, but checked and clipped.

    An optimizer of DeepSpeed, Apex, Megatron or Accelerate scales, checks and clips by itself: it
    is returned unchanged, with one log message. ONNX Runtime changed these only to save GPU kernel
    launches.

    Args:
        optimizer: a PyTorch optimizer, such as ``FusedAdam``; or one of the packages above.
        loss_scaler: by default a ``DynamicLossScaler``.
        max_norm: bound of the gradients' global norm; 0 for none.
        unused: accepted for compatibility: arguments that Megatron's optimizers needed.

    Raises:
        TypeError: it is no optimizer.
    """
    theirs = type(optimizer).__module__.partition(".")[0] in _SCALE_THEMSELVES
    if theirs or hasattr(optimizer, _APEX_MARK):
        name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        say_once(f"FP16_Optimizer({name})", "it tests, scales and clips gradients by itself")
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"FP16_Optimizer takes an optimizer, not a {type(optimizer).__name__}")
    return ScaledOptimizer(optimizer, loss_scaler or DynamicLossScaler(), max_norm)


class ScaledOptimizer(torch.optim.Optimizer):
    """An optimizer for gradients of a scaled loss; it shares groups and state with ``optimizer``.

    Attributes:
        optimizer: the optimizer that makes the steps.
        overflow: whether the last step was skipped.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: LossScaler, max_norm: float):
        self.__dict__.update({k: v for k, v in vars(optimizer).items() if k not in _OF_INNER})
        self.optimizer = optimizer
        self.overflow = False
        self._scaler = scaler
        self._max_norm = max_norm
        self._divided = True  # whether gradients are unscaled
        self._factor = 1.0  # that of the gradients, if not

    # A load replaces these tables; schedulers change the groups that steps read.
    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimizer's groups."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:  # type: ignore[override]
        """The optimizer's state."""
        state: defaultdict[torch.Tensor, Any] = self.optimizer.state
        return state

    @property
    def loss_scale(self) -> float:
        """Factor of the next loss."""
        return self._scaler.loss_scale

    def backward(self, loss: torch.Tensor, **options: object) -> None:
        """Add the gradients of the scaled loss; ``options`` are those of ``Tensor.backward``."""
        before = [p.grad for p in self._parameters()]
        factor = self.loss_scale if self._divided or not before else self._factor
        if self._divided and before:  # scale existing gradients too
            foreach_mul_(before, factor)
        (loss * factor).backward(**options)
        self._divided, self._factor = False, factor

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Clip the gradients' global norm before ``step``; return it, or -1 at an overflow."""
        if not self._divide():
            return -1.0
        return float(clip_grad_norm_(self._parameters(), max_norm, norm_type))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update, or skip the update if a gradient is not finite; adapt the scale.

        ``overflow`` tells which of the two. Raises RuntimeError for a closure, whose gradients
        would not be scaled.
        """
        if closure is not None:
            raise RuntimeError("FP16_Optimizer takes no closure: call backward(loss), then step()")
        result = None
        finite = self._divide()
        if finite:
            if self._max_norm:
                clip_grad_norm_(self._parameters(), self._max_norm)
            result = self.optimizer.step()
        self.overflow = not finite
        self._divided = True  # gradients that overflowed are useless; the caller drops them
        self._scaler.update(SimpleNamespace(all_finite=finite))
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set gradients to None, or fill them with zeros."""
        self.optimizer.zero_grad(set_to_none)
        self._divided = True

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, as "optimizer", and the scaler's."""
        scaler = self._scaler
        own = scaler.state_dict() if isinstance(scaler, DynamicLossScaler) else {}
        return {"optimizer": self.optimizer.state_dict(), "loss_scaler": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Load a result of ``state_dict``."""
        self.optimizer.load_state_dict(state["optimizer"])
        if isinstance(self._scaler, DynamicLossScaler):
            self._scaler.load_state_dict(state["loss_scaler"])

    def __getstate__(self) -> dict[str, Any]:
        own = ("optimizer", "overflow", "_scaler", "_max_norm", "_divided", "_factor")
        return {name: self.__dict__[name] for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        inner = vars(state["optimizer"])
        self.__dict__.update({k: v for k, v in inner.items() if k not in _OF_INNER})
        self.__dict__.update(state)

    def _parameters(self) -> list[torch.Tensor]:
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.grad is not None]

    def _divide(self) -> bool:
        """Divide gradients by the scale, if not done yet; return whether all are finite."""
        gradients = [p.grad for p in self._parameters()]
        # the maximum norm, which does not overflow by summation
        finite = math.isfinite(float(get_total_norm(gradients, math.inf)))
        if finite and not self._divided:
            foreach_mul_(gradients, 1 / self._factor)
            self._divided = True
        return finite

"""Loss scales, which keep small 16-bit gradients from becoming zero."""

from __future__ import annotations

from steep.compat.optim.step_info import StepInfo


class LossScaler:
    """A constant loss scale.

    Attributes:
        loss_scale: factor of the loss; gradients are divided by it.
    """

    def __init__(self, loss_scale: float) -> None:
        self._initial = self.loss_scale = float(loss_scale)

    def reset(self) -> None:
        """Restore the initial scale."""
        self.loss_scale = self._initial

    def update(self, train_step_info: StepInfo) -> float:
        """Return the scale of the next step, given a ``TrainStepInfo`` of the last one."""
        return self.loss_scale


class DynamicLossScaler(LossScaler):
    """A scale that halves when gradients overflow, and doubles after some steps without overflow.

    Args:
        automatic_update: whether ``update`` changes the scale.
        loss_scale: the initial scale.
        up_scale_window: steps without overflow after which it doubles.
        min_loss_scale, max_loss_scale: its bounds.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        automatic_update: bool = True,
        loss_scale: float = 2.0**16,
        up_scale_window: int = 2000,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = 2.0**24,
    ) -> None:
        if not 0 < min_loss_scale <= loss_scale <= max_loss_scale:
            raise ValueError(
                "0 < min_loss_scale <= loss_scale <= max_loss_scale must hold: "
                f"{min_loss_scale}, {loss_scale}, {max_loss_scale}"
            )
        if up_scale_window < 1:
            raise ValueError(f"up_scale_window must be at least 1, not {up_scale_window}")
        super().__init__(loss_scale)
        self.automatic_update = automatic_update
        self.up_scale_window = up_scale_window
        self.min_loss_scale, self.max_loss_scale = min_loss_scale, max_loss_scale
        self._stable_steps = 0

    def reset(self) -> None:
        """Restore the initial scale."""
        super().reset()
        self._stable_steps = 0

    def update(self, train_step_info: StepInfo) -> float:
        """Return the scale of the next step, by ``train_step_info.all_finite`` of the last step."""
        if not self.automatic_update:
            return self.loss_scale
        if not train_step_info.all_finite:
            self._stable_steps = 0
            self.loss_scale = max(self.min_loss_scale, self.loss_scale / 2)
            return self.loss_scale
        self._stable_steps += 1
        if self._stable_steps >= self.up_scale_window:
            self._stable_steps = 0
            self.loss_scale = min(self.max_loss_scale, self.loss_scale * 2)
        return self.loss_scale

    def state_dict(self) -> dict[str, float]:
        """Return the scale, and the number of steps without overflow."""
        return {"loss_scale": self.loss_scale, "stable_steps": self._stable_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Load a result of ``state_dict``."""
        self.loss_scale = float(state["loss_scale"])
        self._stable_steps = int(state["stable_steps"])

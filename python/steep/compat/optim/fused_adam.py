"""``FusedAdam``: Adam and AdamW over all parameters in one call of the engine."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any

import torch

from steep import _steep
from steep.compat.optim.tensor_update import TensorUpdate
from steep.trainers.optimizer_state import SharedState, require_count, require_moment


class AdamWMode(enum.IntEnum):
    """The variant of Adam: where weight decay and epsilon are applied.

    ADAM_L2_REGULARIZATION: decay is a part of the gradient, as in ``torch.optim.Adam``.
    ADAMW_TRANSFORMERS: decay of the new weight, after the update; epsilon is added to the
        uncorrected root, as in transformers' AdamW.
    ADAMW_TORCH: decay before the update, as in ``torch.optim.AdamW``.
    """

    ADAM_L2_REGULARIZATION = 0
    ADAMW_TRANSFORMERS = 1
    ADAMW_TORCH = 2


_KINDS = {
    AdamWMode.ADAM_L2_REGULARIZATION: "adam",
    AdamWMode.ADAMW_TRANSFORMERS: "transformers_adamw",
    AdamWMode.ADAMW_TORCH: "adamw",
}


class FusedAdam(torch.optim.Optimizer):
    """Adam whose step is one compiled program of the engine, for all parameters at once.

    ``state`` has PyTorch's names ("step", "exp_avg", "exp_avg_sq") and is the engine's own memory.
    New weights equal those of PyTorch to the last bit, except a tensor's last few elements, where
    ``torch.optim``'s fused kernels round differently.

    The program is compiled at the first step, and again when other parameters have gradients, or
    ``bias_correction`` changes.

    >>> optimizer = FusedAdam(model.parameters(), lr=1e-3)

    Args:
        params: as for ``torch.optim``: parameters of float32 or float64, or groups of them.
        lr, betas, eps, weight_decay: the numbers of Adam; they may change between steps.
        bias_correction: correct moments for their start at zero.
        adam_w_mode: an ``AdamWMode``, or its number.
        set_grad_none: ``zero_grad`` sets gradients to None, instead of filling them with zeros.

    Raises:
        ValueError: a number is out of range, or there is no such mode.
    """

    def __init__(  # noqa: PLR0917 (ONNX Runtime's order)
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
        self._shared_state: SharedState | None = None
        self._holds_for: list[Any] = []
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**numbers, "bias_correction": bias_correction, "step": 0})

    def __setstate__(self, state: dict[str, Any]) -> None:
        # copies and pickles do not contain the compiled program
        super().__setstate__({**state, "_update": None, "_shared_state": None, "_holds_for": []})

    def __getstate__(self) -> dict[str, Any]:
        own = {"_mode": self._mode, "_set_grad_none": self._set_grad_none}
        return {**super().__getstate__(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as ``torch.optim``, but with moments that training can go on from.

        Raises:
            DataError: a moment is not finite, or a second moment is negative. Nothing is loaded.
        """
        for key, entry in state_dict["state"].items():
            for name, squares in (("exp_avg", False), ("exp_avg_sq", True)):
                if (moment := entry.get(name)) is not None:
                    of = f"{name} of parameter {key}"
                    require_moment(torch.as_tensor(moment), of, squares=squares)
        super().load_state_dict(state_dict)
        for group in self.param_groups:  # a state of torch.optim lacks these two
            group.setdefault("step", 0)
            group.setdefault("bias_correction", self.defaults["bias_correction"])

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Set gradients to None, or fill them with zeros; by default as ``set_grad_none`` says."""
        super().zero_grad(self._set_grad_none if set_to_none is None else set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the parameters that have gradients; return the result of ``closure``.

        Raises:
            RuntimeError: a gradient is sparse.
            DataError: a parameter cannot be updated in place, or is in the groups twice; or a
                loaded step count is not valid.
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
        update = self._compile(groups, [self._options(group.settings) for group in groups])
        pairs = zip(gradients, update.parameters.values(), strict=True)
        update.step([g.to(p.dtype).contiguous() for g, p in pairs])
        assert self._shared_state is not None
        self._shared_state.show()
        for group in groups:
            group.settings["step"] += 1
        return result

    def _groups(self) -> list[_Group]:
        """Return the parameters that have gradients, by group."""
        groups = []
        for settings in self.param_groups:
            require_count(settings["step"], "step of a group")
            parameters = [p for p in settings["params"] if p.grad is not None]
            if parameters:
                groups.append(_Group(settings, parameters))
        return groups

    def _compile(
        self, groups: list[_Group], options: list[_steep.OptimizerOptions]
    ) -> TensorUpdate:
        """Return the program for these parameters, with the settings ``options``."""
        holds_for = [group.compiled_in() for group in groups]
        if (
            self._update is not None
            and self._shared_state is not None
            and holds_for == self._holds_for
        ):
            for i, numbers in enumerate(options):
                self._update.session.set_group(i, numbers)
            self._shared_state.agree()
            return self._update
        self._update = update = TensorUpdate(
            [
                ({f"{k}/{i}": p for i, p in enumerate(group.parameters)}, numbers)
                for k, (group, numbers) in enumerate(zip(groups, options, strict=True))
            ]
        )
        self._shared_state = SharedState(self, update.session, update.parameters)
        self._holds_for = holds_for
        return update

    def _options(self, settings: dict[str, Any]) -> _steep.OptimizerOptions:
        """Return the engine's options for the next step of a parameter group."""
        options = _steep.OptimizerOptions()
        options.kind = _KINDS[self._mode]
        options.beta1, options.beta2 = settings["betas"]
        options.bias_correction = bool(settings["bias_correction"])
        options.lr, options.epsilon = float(settings["lr"]), float(settings["eps"])
        options.weight_decay = float(settings["weight_decay"])
        return options


@dataclasses.dataclass
class _Group:
    """Parameters with gradients, and their settings."""

    settings: dict[str, Any]
    parameters: list[torch.Tensor]

    def compiled_in(self) -> tuple[object, ...]:
        """Return what a program depends on: a flag, and where the parameters are in memory."""
        places = [(id(p), p.data_ptr(), p.shape, p.stride()) for p in self.parameters]
        return bool(self.settings["bias_correction"]), places

"""Optimizers of an ``ORTTrainer``: SGD, Adam or LAMB, and their settings."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

from steep import _steep
from steep.errors import DataError


class _OptimizerConfig:
    """An optimizer by name, its settings, and those of parameter groups.

    Attributes:
        name: "SGDOptimizer", "AdamOptimizer" or "LambOptimizer".
        defaults: settings by name, "lr" among them. For the learning rate, the attribute ``lr``
            applies.
        params: groups: ``{"params": [names], …}`` with settings that differ.
    """

    def __init__(
        self, name: str, params: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]
    ) -> None:
        if name not in _KINDS:
            raise _wrong("The optimizer is unknown.", ", ".join(_KINDS), name)
        self.name = name
        self.defaults = dict(defaults)
        self.lr = float(self.defaults["lr"])
        if not self.lr >= 0:
            raise _wrong("The learning rate is negative.", "at least 0", str(self.lr))
        if not isinstance(params, (list, tuple)):
            raise _wrong(
                "The parameter groups are not a list.", '[{"params": […], …}, …]', repr(params)
            )
        for group in params:
            self._check(group)
        self.params = [dict(group) for group in params]
        names = [name for group in self.params for name in group["params"]]
        if len(set(names)) != len(names):
            twice = ", ".join(sorted({name for name in names if names.count(name) > 1}))
            raise _wrong("A parameter is in two groups.", "each name in one, once", twice)

    def _check(self, group: Mapping[str, Any]) -> None:
        if not isinstance(group, dict) or not isinstance(group.get("params"), (list, tuple)):
            raise _wrong("A group has no list of names.", '{"params": […], …}', repr(group))
        if "lr" in group:
            raise _wrong(
                "A parameter group has its own learning rate.", "one rate for all", repr(group)
            )
        bound = self.defaults.get("max_norm_clip")
        if group.get("max_norm_clip", bound) != bound:
            raise _wrong(
                "A parameter group has its own bound of the gradient norm.",
                f"one max_norm_clip for all, {bound}",
                repr(group),
            )
        for key in group:
            if key != "params" and key not in self.defaults:
                raise _wrong(
                    "A parameter group has an unknown setting.", ", ".join(self.defaults), key
                )

    def names(self) -> set[str]:
        """Return the parameters that are in a group."""
        return {name for group in self.params for name in group["params"]}

    def options(
        self, lr: float | None = None, group: Mapping[str, Any] | None = None
    ) -> _steep.OptimizerOptions:
        """Return the engine's options of a parameter group; None: of parameters in no group."""
        numbers = {**self.defaults, **(group or {})}
        options = _steep.OptimizerOptions()
        options.kind = _KINDS[self.name]
        options.lr = self.lr if lr is None else lr
        if self.name == "SGDOptimizer":
            return options
        options.beta1, options.beta2 = numbers["alpha"], numbers["beta"]
        options.epsilon, options.weight_decay = numbers["epsilon"], numbers["lambda_coef"]
        options.bias_correction = bool(numbers["do_bias_correction"])
        return options

    @property
    def max_norm_clip(self) -> float:
        """Bound of the gradients' global norm; infinity for none."""
        return float(self.defaults.get("max_norm_clip", math.inf))


_KINDS = {"SGDOptimizer": "sgd", "AdamOptimizer": "adamw", "LambOptimizer": "lamb"}


def _wrong(what: str, expected: str, received: str) -> DataError:
    return DataError(what, expected=expected, received=received)


class SGDConfig(_OptimizerConfig):
    """Stochastic gradient descent.

    Args:
        params: must be empty: all parameters have the same settings.
        lr: the learning rate.
    """

    def __init__(self, params: Sequence[Mapping[str, Any]] = (), lr: float = 0.001) -> None:
        if params:
            raise _wrong("SGD does not support parameter groups.", "[]", repr(params))
        super().__init__("SGDOptimizer", [], {"lr": lr})


class AdamConfig(_OptimizerConfig):
    """Adam with decoupled weight decay.

    Args:
        params: groups: ``{"params": [names], "lambda_coef": 0.0}``, with settings that differ.
        lr: the learning rate.
        alpha, beta: decay rates of the moments.
        lambda_coef: weight decay.
        epsilon: added to the root of the second moment.
        max_norm_clip: bound of the gradients' global norm.
        do_bias_correction: correct moments for their start at zero.
        weight_decay_mode: must be decay before the update, as PyTorch's AdamW. ``FusedAdam`` has
            the other order.
    """

    class DecayMode(enum.IntEnum):
        """When weights decay."""

        BEFORE_WEIGHT_UPDATE = 0
        AFTER_WEIGHT_UPDATE = 1

    def __init__(  # noqa: PLR0917 (ONNX Runtime's order)
        self,
        params: Sequence[Mapping[str, Any]] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        epsilon: float = 1e-8,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = True,
        weight_decay_mode: DecayMode = DecayMode.BEFORE_WEIGHT_UPDATE,
    ) -> None:
        if weight_decay_mode != AdamConfig.DecayMode.BEFORE_WEIGHT_UPDATE and lambda_coef:
            raise DataError(
                "Weight decay after the update is not supported.",
                expected="BEFORE_WEIGHT_UPDATE",
                received=repr(weight_decay_mode),
                remedy="FusedAdam has transformers' order, in a loop with ORTModule",
            )
        numbers = {"alpha": alpha, "beta": beta, "lambda_coef": lambda_coef, "epsilon": epsilon}
        more = {"max_norm_clip": max_norm_clip, "do_bias_correction": do_bias_correction}
        super().__init__("AdamOptimizer", params, {"lr": lr, **numbers, **more})


class LambConfig(_OptimizerConfig):
    """LAMB.

    Args:
        params, lr, alpha, beta, lambda_coef, epsilon, max_norm_clip: as for ``AdamConfig``.
        ratio_min, ratio_max: bounds of the trust ratio; must be -infinity and infinity (none).
        do_bias_correction: correct moments for their start at zero.
    """

    def __init__(  # noqa: PLR0917 (ONNX Runtime's order)
        self,
        params: Sequence[Mapping[str, Any]] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        ratio_min: float = -math.inf,
        ratio_max: float = math.inf,
        epsilon: float = 1e-6,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = False,
    ) -> None:
        if (ratio_min, ratio_max) != (-math.inf, math.inf):
            raise DataError(
                "Bounds of LAMB's trust ratio are not supported.",
                expected="-inf, inf",
                received=f"{ratio_min}, {ratio_max}",
            )
        numbers = {"alpha": alpha, "beta": beta, "lambda_coef": lambda_coef, "epsilon": epsilon}
        more = {"max_norm_clip": max_norm_clip, "do_bias_correction": do_bias_correction}
        super().__init__("LambOptimizer", params, {"lr": lr, **numbers, **more})

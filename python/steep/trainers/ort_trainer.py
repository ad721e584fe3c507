"""``ORTTrainer``: the interface of ONNX Runtime Training's samples.

Names, shapes and dtypes of inputs and outputs are described, the loss is a separate function, and
the optimizer is chosen by name.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from steep.errors import DataError, ModelError, counted
from steep.providers import Providers
from steep.trainers.base import Trainer
from steep.trainers.step_options import StepOptions


@dataclasses.dataclass
class IODescription:
    """Name, shape (numbers or names of extents) and dtype of an input or output."""

    name: str
    shape: Sequence[int | str]
    dtype: torch.dtype | None = None
    num_classes: int | None = None


@dataclasses.dataclass
class ModelDescription:
    """Inputs, the label last if there is a ``loss_fn``; outputs, the loss first."""

    inputs: Sequence[IODescription]
    outputs: Sequence[IODescription]


_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGDOptimizer": {"optimizer": "sgd"},
    "AdamOptimizer": {"optimizer": "adamw"},  # its weight decay is decoupled
    "LambOptimizer": {"optimizer": "lamb", "eps": 1e-6, "bias_correction": False},
}


class ORTTrainer(Trainer):
    """A trainer with ONNX Runtime Training's interface: inputs and outputs are described.

    >>> trainer = ORTTrainer(model, loss_fn, model_desc, "SGDOptimizer", None,
    ...                      IODescription("Learning_Rate", [1], torch.float32), device)
    >>> loss, output = trainer.train_step(data, targets, torch.tensor([lr]))

    Args:
        model: a module, whose parameters the engine updates in place.
        loss_fn: called with the model's result and the last input; None if the model returns its
            loss.
        model_desc: names and shapes of inputs and outputs.
        training_optimizer_name: "SGDOptimizer", "AdamOptimizer" or "LambOptimizer".
        map_optimizer_attributes: numbers by name: "alpha", "beta", "epsilon", "lambda", "momentum",
            "do_bias_correction"; or a function that returns them for a parameter's name (only
            "lambda", the weight decay, may differ between parameters).
        learning_rate_description: the learning rate is ``train_step``'s last argument.
        device: CPU.
        use_mixed_precision: matrix products in bfloat16, as ``precision="bf16"``.
        clip_norm, clip_value, predictions, precision: as for ``steep.trainer``.
        loss_scale, loss_scale_window: as for ``steep.trainer``.
        seed, check_finite, master_weights, stochastic_rounding: as for ``steep.trainer``.
        state_precision, memory_limit, offload_folder: as for ``steep.trainer``.
        disabled_passes, providers: as for ``steep.trainer``.
        _opset_version: ONNX opset of ``save_as_onnx``; at least 18.
    """

    def __init__(  # noqa: PLR0917 (ONNX Runtime's order)
        self,
        model: torch.nn.Module,
        loss_fn: Callable[..., Any] | None,
        model_desc: ModelDescription,
        training_optimizer_name: str,
        map_optimizer_attributes: Mapping[str, float] | Callable[[str], Mapping[str, float]] | None,
        learning_rate_description: IODescription,
        device: torch.device | str | None = None,
        *,
        use_mixed_precision: bool = False,
        _opset_version: int | None = None,
        clip_norm: float = 0.0,
        clip_value: float = 0.0,
        predictions: bool = True,
        precision: str | None = None,
        loss_scale: float = 2.0**16,
        loss_scale_window: int = 2000,
        seed: int | None = None,
        check_finite: bool = False,
        master_weights: bool = True,
        stochastic_rounding: bool = False,
        state_precision: str = "float32",
        memory_limit: str | int = "",
        offload_folder: str | os.PathLike[str] = "",
        disabled_passes: Sequence[str] = (),
        providers: Providers | None = None,
    ) -> None:
        if training_optimizer_name not in _OPTIMIZERS:
            raise ModelError(
                "The optimizer is unknown.",
                expected=", ".join(_OPTIMIZERS),
                received=training_optimizer_name,
            )
        if torch.device(device or "cpu").type != "cpu":
            raise ModelError(
                "Only the CPU is supported.", received=str(device), remedy='pass "cpu"'
            )
        if not model_desc.inputs or not model_desc.outputs:
            raise ModelError("A model description needs inputs and outputs.")
        self.model_desc = model_desc
        self.learning_rate_description = learning_rate_description
        self._attributes = map_optimizer_attributes
        settings: dict[str, Any] = dict(_OPTIMIZERS[training_optimizer_name])
        settings |= _attribute_settings(self._for_parameter(""))
        if precision is None:
            precision = "bf16" if use_mixed_precision else "fp32"
        settings |= StepOptions(
            clip_norm=clip_norm,
            clip_value=clip_value,
            precision=precision,
            loss_scale=loss_scale,
            loss_scale_window=loss_scale_window,
            check_finite=check_finite,
            master_weights=master_weights,
            stochastic_rounding=stochastic_rounding,
            state_precision=state_precision,
            memory_limit=memory_limit,
            offload_folder=offload_folder,
            disabled_passes=disabled_passes,
            providers=providers,
        ).settings()
        # Older opsets lack operators that the exporter uses.
        opset = max(_opset_version, 18) if _opset_version is not None else None
        super().__init__(model, loss_fn, settings, seed=seed, opset=opset, predictions=predictions)

    def train_step(self, *inputs: torch.Tensor) -> Any:
        """Run one step with the described inputs, then the learning rate.

        Returns the described outputs.
        """
        *data, lr = inputs or (None,)
        if not inputs or len(data) != len(self.model_desc.inputs):
            raise DataError(
                "The number of inputs is wrong.",
                expected=", ".join(
                    d.name for d in (*self.model_desc.inputs, self.learning_rate_description)
                ),
                received=counted(len(inputs), "input"),
            )
        if not isinstance(lr, (int, float)) and not (
            isinstance(lr, torch.Tensor) and lr.numel() == 1
        ):
            raise DataError(
                "The learning rate is not valid.",
                node=self.learning_rate_description.name,
                expected="a number, or a tensor of one element",
                received=repr(lr),
            )
        return self._describe(self.step(*data, lr=float(lr)))

    def eval_step(self, *inputs: torch.Tensor) -> Any:
        """Return the described outputs in evaluation mode, without an update."""
        return self._describe(self.evaluate(*inputs))

    def _describe(self, result: Any) -> Any:
        if not isinstance(result, tuple):
            return result
        loss, prediction = result
        rest = prediction if isinstance(prediction, tuple) else (prediction,)
        outputs = (loss, *rest)[: len(self.model_desc.outputs)]
        return outputs[0] if len(outputs) == 1 else outputs

    def _for_parameter(self, name: str) -> Mapping[str, float]:
        attributes = self._attributes
        return (attributes(name) if callable(attributes) else attributes) or {}

    def _groups(self, names: dict[str, str]) -> list[tuple[list[str], dict[str, float]]]:
        if not callable(self._attributes):
            return []
        groups: dict[float, list[str]] = {}
        common = _attribute_settings(self._for_parameter(""))
        for name, graph_name in names.items():
            settings = _attribute_settings(self._for_parameter(name.removeprefix("model.")))
            decay = settings.pop("weight_decay", 0.0)
            if settings != {k: v for k, v in common.items() if k != "weight_decay"}:
                raise ModelError(
                    "Attributes of the optimizer may differ between parameters in lambda only.",
                    node=name,
                )
            groups.setdefault(decay, []).append(graph_name)
        return [(members, {"weight_decay": decay}) for decay, members in groups.items()]


def _attribute_settings(attributes: Mapping[str, float]) -> dict[str, Any]:
    names = {"alpha", "beta", "epsilon", "lambda", "lambda_coef", "momentum", "do_bias_correction"}
    unknown = set(attributes) - names
    if unknown:
        raise ModelError(
            "An attribute of the optimizer is unknown.",
            expected=", ".join(sorted(names)),
            received=", ".join(sorted(unknown)),
        )
    settings: dict[str, Any] = {}
    if "alpha" in attributes or "beta" in attributes:
        settings["betas"] = (attributes.get("alpha", 0.9), attributes.get("beta", 0.999))
    if "epsilon" in attributes:
        settings["eps"] = attributes["epsilon"]
    if "momentum" in attributes:
        settings["momentum"] = attributes["momentum"]
    if "do_bias_correction" in attributes:
        settings["bias_correction"] = bool(attributes["do_bias_correction"])
    decay = attributes.get("lambda", attributes.get("lambda_coef"))
    if decay is not None:
        settings["weight_decay"] = decay
    return settings

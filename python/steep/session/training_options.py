"""Keywords of ``TrainingSession`` as the engine's options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from steep import _steep
from steep.errors import ModelError
from steep.session.memory_limit import limit_text
from steep.session.source import ModelProto, source_of

Loss = str | os.PathLike[str] | bytes | ModelProto

# What a keyword takes, by the type of its default.
_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
_REMEDIES = {
    "loss": "Name a loss, or give its ONNX model. For one in Python, pass gradients of outputs: "
    "steep.GradientSession (docs/forward_backward.md), or steep.trainer for PyTorch.",
    "lr": "For a rate that changes: schedule=lambda step: factor, or assign session.lr "
    "between steps.",
}


def options_of(settings: Mapping[str, Any]) -> _steep.TrainingOptions:
    """Return options with the values of the table of options (option_rows.h).

    Raises:
        ModelError: a value is of the wrong type.
    """
    beta1, beta2 = settings["betas"]
    values = {**settings, "beta1": beta1, "beta2": beta2, "epsilon": settings["eps"]}
    values["memory_limit"] = limit_text(settings["memory_limit"])
    values["offload_folder"] = os.fspath(settings["offload_folder"])
    options = _steep.TrainingOptions()
    values["loss"] = take_loss(options, settings["loss"])
    for part, field, keyword, _, text in _steep.option_rows():
        if keyword in values:
            owner = getattr(options, part) if part else options
            _assign(owner, field, keyword, values[keyword], text)
    return options


def take_loss(options: _steep.TrainingOptions, loss: Loss) -> str:
    """Return the name of a loss, or the path of its model; give the options a model itself."""
    if isinstance(loss, bytes) or hasattr(loss, "SerializeToString"):
        options.loss_model = bytes(source_of(loss))
        return "model"
    return os.fspath(loss) if isinstance(loss, os.PathLike) else loss


def group_of(
    names: Sequence[str], settings: Mapping[str, Any] | _steep.OptimizerOptions
) -> _steep.ParameterGroup:
    """Return a group of parameters with settings of their own.

    Raises:
        ValueError: there is no such setting.
    """
    group = _steep.ParameterGroup()
    group.names = list(names)
    if isinstance(settings, _steep.OptimizerOptions):
        group.optimizer = settings
        return group
    if "optimizer" in settings:
        group.optimizer = _optimizer_of(settings)
        return group
    for name, value in settings.items():
        if name not in ("lr_multiplier", "weight_decay"):
            raise ValueError(f"a parameter group has no setting {name!r}")
        setattr(group, name, value)
    return group


def _optimizer_of(settings: Mapping[str, Any]) -> _steep.OptimizerOptions:
    """Return an optimizer with settings by the keywords of ``TrainingSession``."""
    values = dict(settings)
    if "betas" in values:
        values["beta1"], values["beta2"] = values.pop("betas")
    if "eps" in values:
        values["epsilon"] = values.pop("eps")
    options = _steep.OptimizerOptions()
    options.attributes = dict(values.pop("attributes", None) or {})
    for part, field, keyword, _, text in _steep.option_rows():
        if part == "optimizer" and keyword in values:
            _assign(options, field, keyword, values.pop(keyword), text)
    for name in values:
        raise ValueError(f"an optimizer has no setting {name!r}")
    return options


def _assign(owner: object, field: str, keyword: str, value: object, text: str) -> None:
    default = getattr(owner, field)
    try:
        if isinstance(default, list):
            value = list(value)  # type: ignore[call-overload]
        setattr(owner, field, value)
    except TypeError as error:
        kind = "a list" if isinstance(default, list) else _KINDS.get(type(default), "a value")
        raise ModelError(
            f"The option {keyword} cannot have this value.",
            node=keyword,
            expected=f"{kind}: {' '.join(text.split())}",
            received="a function" if callable(value) else repr(value),
            remedy=_REMEDIES.get(keyword, ""),
        ) from error

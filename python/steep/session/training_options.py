"""Keywords of ``TrainingSession`` as the engine's options."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from steep import _steep
from steep.errors import ModelError
from steep.session.memory_limit import limit_text
from steep.session.source import ModelProto, source_of

Loss = str | os.PathLike[str] | bytes | ModelProto

# What a keyword takes, by the type of its default.
_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
# The settings of a parameter group without an optimizer of its own.
_OF_GROUPS = {
    "lr_multiplier": "the learning rate is that of the session, times this",
    "weight_decay": "weight decay",
}
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


Group = tuple[Sequence[str], Mapping[str, Any] | _steep.OptimizerOptions]


def groups_of(groups: Sequence[Group], lr: float) -> list[_steep.ParameterGroup]:
    """Return groups of parameters with settings of their own.

    Args:
        groups: as for ``TrainingSession``.
        lr: the session's learning rate, of which rates of groups become multiples.

    Raises:
        ModelError: an entry is not a pair of names and settings; there is no such setting, or it
            has a value of the wrong type.
    """
    return [_group_of(entry, lr) for entry in groups]


def _group_of(entry: Group, lr: float) -> _steep.ParameterGroup:
    pair = isinstance(entry, tuple | list) and len(entry) == 2
    names = entry[0] if pair else ""
    is_list = isinstance(names, Iterable) and not isinstance(names, str)
    if not is_list or not isinstance(entry[1], Mapping | _steep.OptimizerOptions):
        raise ModelError(
            "A parameter group is no pair of names and settings.",
            node="groups",
            expected="(names, settings), as in (['head.*'], {'lr': 0.01})",
            received=repr(entry),
            remedy="Name the group's parameters; * stands for any characters. Parameters in no "
            "group have the settings of the session.",
        )
    settings = entry[1]
    group = _steep.ParameterGroup()
    group.names = list(names)
    if isinstance(settings, _steep.OptimizerOptions):
        group.optimizer = settings
    elif "optimizer" in settings:
        group.optimizer = _optimizer_of(settings)
    else:
        for name, value in _with_multiplier(settings, lr).items():
            _assign(group, name, name, value, _OF_GROUPS[name])
    return group


def _with_multiplier(settings: Mapping[str, Any], lr: float) -> dict[str, Any]:
    """Return the settings of a group, with a multiple of the session's rate in place of ``lr``."""
    for name in settings:
        if name != "lr" and name not in _OF_GROUPS:
            raise ModelError(
                "A parameter group has no such setting.",
                node="groups",
                expected=", ".join(["lr", *_OF_GROUPS]),
                received=name,
                remedy="For all settings of optimizers, give the group one of its own: "
                "{'optimizer': 'adamw', …}.",
            )
    values = dict(settings)
    if "lr" not in values:
        return values
    rate = values.pop("lr")
    is_number = isinstance(rate, numbers.Real) and not isinstance(rate, bool)
    if not is_number or not lr or "lr_multiplier" in values:
        raise ModelError(
            "A parameter group cannot have this lr.",
            node="groups",
            expected="a number, without lr_multiplier, and a session whose lr is not 0",
            received=f"lr={rate!r}, lr_multiplier={values.get('lr_multiplier', 1)!r}, and lr={lr} "
            "of the session",
            remedy="Give lr or lr_multiplier. For rates that do not follow the session's, give the "
            "group an optimizer of its own: {'optimizer': 'adamw', 'lr': …}.",
        )
    return {**values, "lr_multiplier": float(rate) / lr}


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
        keywords = {row[2] for row in _steep.option_rows() if row[0] == "optimizer"}
        raise ModelError(
            "An optimizer has no such setting.",
            node="groups",
            expected=", ".join(sorted(keywords - {"beta1", "beta2", "epsilon"} | {"betas", "eps"})),
            received=name,
            remedy="Leave it out; docs/options.md lists them all.",
        )
    return options


def _assign(owner: object, field: str, keyword: str, value: object, text: str) -> None:
    default = getattr(owner, field)
    try:
        if isinstance(default, list):
            if isinstance(value, str):  # its letters: of "w*", the star stands for all names
                raise TypeError
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

"""``ORTTrainerOptions``: the settings of an ``ORTTrainer`` besides its model and optimizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from steep.compat.notices import say_once
from steep.compat.optim.schedulers import _LRScheduler
from steep.errors import DataError

_GPU = "the trainer runs on the CPU, in one process"
_ALWAYS = "graphs are checked, and their shapes inferred, always"
_PLANNED = "the planner decides what backward computes again"

# By section and key: the default, and why the key has no effect; "" if it has one.
_KEYS: dict[str, dict[str, tuple[Any, str]]] = {
    "batch": {"gradient_accumulation_steps": (1, "")},
    "device": {"id": ("cpu", ""), "mem_limit": (0, "steep.Limits bounds memory")},
    "distributed": {
        **{key: (0, "") for key in ("world_rank", "local_rank")},
        **{
            key: (1, "") for key in ("world_size", "data_parallel_size", "horizontal_parallel_size")
        },
        **{key: (False, _GPU) for key in ("allreduce_post_accumulation", "enable_adasum")},
        "deepspeed_zero_optimization": ({"stage": 0}, _GPU),
        "pipeline_parallel": (
            {
                "pipeline_parallel_size": 1,
                "num_pipeline_micro_batches": 1,
                "pipeline_cut_info_string": "",
                "sliced_schema": {},
                "sliced_axes": {},
                "sliced_tensor_names": [],
            },
            _GPU,
        ),
    },
    "mixed_precision": {"enabled": (False, ""), "loss_scaler": (None, "")},
    "graph_transformer": {
        **{
            key: (False, _PLANNED)
            for key in ("attn_dropout_recompute", "gelu_recompute", "transformer_layer_recompute")
        },
        "number_recompute_layers": (0, _PLANNED),
        "propagate_cast_ops_config": (
            {"strategy": "FLOOD_FILL", "level": 1, "allow": []},
            "mixed_precision says where products are of 16 bits",
        ),
    },
    "utils": {
        "frozen_weights": ([], ""),
        "grad_norm_clip": (True, ""),
        "memory_efficient_gradient": (False, _PLANNED),
        "run_symbolic_shape_infer": (False, _ALWAYS),
    },
    "debug": {
        "deterministic_compute": (False, "steps of one number of threads are deterministic"),
        "check_model_export": (False, _ALWAYS),
        "graph_save_paths": (
            {
                "model_after_graph_transforms_path": "",
                "model_with_gradient_graph_path": "",
                "model_with_training_graph_path": "",
                "model_with_training_graph_after_optimization_path": "",
            },
            "DebugOptions of ORTModule writes graphs",
        ),
    },
    "_internal_use": {
        "enable_internal_postprocess": (True, _ALWAYS),
        "extra_postprocess": (None, _ALWAYS),
        "onnx_opset_version": (14, ""),
        "enable_onnx_contrib_ops": (True, _ALWAYS),
    },
}
_OTHERS: dict[str, tuple[Any, str]] = {
    "lr_scheduler": (None, ""),
    "session_options": (None, "a graph is compiled for the shapes that it gets, always"),
    "provider_options": ({}, _GPU),
}
_ONE = ("world_size", "data_parallel_size", "horizontal_parallel_size")


class ORTTrainerOptions:
    """Settings in sections, as attributes: ``options.batch.gradient_accumulation_steps``.

    Sections and keys are those of ONNX Runtime, also nested ones:
    ``options.distributed.deepspeed_zero_optimization.stage``. A setting without effect is logged
    once.

    Args:
        options: a dict by section, of dicts by key; missing keys have their defaults.

    Raises:
        DataError: there is no such section or key, a number is out of range, or more than one
            process or another device than the CPU is requested.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        settings = dict(options or {})
        for name in settings:
            if name not in _KEYS and name not in _OTHERS:
                raise _wrong(name, ", ".join([*_KEYS, *_OTHERS]), "an unknown section")
        for name, (default, without_meaning) in _OTHERS.items():
            value = settings.get(name, default)
            if without_meaning and value != default:
                say_once(name, without_meaning)
            setattr(self, name, value)
        schedule = settings.get("lr_scheduler")
        if schedule is not None and not isinstance(schedule, _LRScheduler):
            raise _wrong("lr_scheduler", "one of onnxruntime.training.optim", repr(schedule))
        for section, keys in _KEYS.items():
            setattr(self, section, _section(section, keys, settings.get(section, {})))
        own: Any = self
        steps = own.batch.gradient_accumulation_steps
        if not isinstance(steps, int) or steps < 1:
            raise _wrong("batch.gradient_accumulation_steps", "at least 1", repr(steps))
        if not str(own.device.id).startswith("cpu"):
            raise _wrong("device.id", '"cpu"', repr(own.device.id))
        for key in _ONE:
            if getattr(own.distributed, key) != 1:
                raise _wrong(f"distributed.{key}", "1", repr(getattr(own.distributed, key)))


def _section(name: str, keys: Mapping[str, tuple[Any, str]], settings: object) -> SimpleNamespace:
    if not isinstance(settings, Mapping):
        raise _wrong(name, "a dict", repr(settings))
    values = {key: copy.deepcopy(default) for key, (default, _) in keys.items()}
    for key, value in settings.items():
        if key not in keys:
            raise _wrong(f"{name}.{key}", ", ".join(keys), "an unknown key")
        default, without_meaning = keys[key]
        values[key] = _within(f"{name}.{key}", default, value) if default else value
        if without_meaning and values[key] != default:
            say_once(f"{name}.{key}", without_meaning)
    return SimpleNamespace(
        **{
            key: SimpleNamespace(**value) if isinstance(keys[key][0], dict) else value
            for key, value in values.items()
        }
    )


def _within(name: str, default: object, settings: object) -> object:
    """Return a nested group of settings, with defaults for missing keys; other values unchanged."""
    if not isinstance(default, dict):
        return settings
    if not isinstance(settings, Mapping):
        raise _wrong(name, "a dict", repr(settings))
    for key in settings:
        if key not in default:
            raise _wrong(f"{name}.{key}", ", ".join(default), "an unknown key")
    return {**default, **settings}


def _wrong(node: str, expected: str, received: str) -> DataError:
    return DataError(
        "An option of ORTTrainer is wrong.", node=node, expected=expected, received=received
    )

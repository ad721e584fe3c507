"""Functions of ONNX Runtime that set something for the whole process."""

from __future__ import annotations

import enum
import logging
import random

from steep.compat.notices import say_once

log = logging.getLogger("steep")

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_device() -> str:
    """Return what the engine runs on unless it is told otherwise: "CPU"."""
    return "CPU"


def set_seed(seed: int) -> None:
    """Seed what dropouts and random operators draw from: PyTorch's generator.

    Raises:
        ImportError: PyTorch is not installed; sessions have a ``seed`` of their own.
    """
    import torch

    random.seed(seed)
    torch.manual_seed(seed)


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger ``steep``: 0 (all) to 4 (fatal only)."""
    if severity not in range(len(_LEVELS)):
        raise ValueError(f"severity must be 0 to {len(_LEVELS) - 1}, not {severity!r}")
    log.setLevel(_LEVELS[severity])


def enable_custom_autograd_support(to_enable: bool = True) -> None:
    """Do nothing: a ``torch.autograd.Function`` always runs with the backward that it says.

    Where the engine cannot run one, PyTorch does. It is said once when it is to be switched off.
    """
    if not to_enable:
        say_once("enable_custom_autograd_support(False)", CUSTOM_AUTOGRAD)


CUSTOM_AUTOGRAD = "a torch.autograd.Function is captured with the backward that it says, always"


class _Enabler:
    """The state that ``custom_autograd_function_enabler`` had: always on."""

    state = True


custom_autograd_function_enabler = _Enabler()


def set_propagate_cast_ops_optimization(model: object, **settings: object) -> None:
    """Do nothing: casts are placed by the precision that is asked for. It is said once."""
    say_once("set_propagate_cast_ops_optimization", PROPAGATE_CASTS)


PROPAGATE_CASTS = "precision and torch.autocast say where products are of 16 bits"


class ArenaExtendStrategy(enum.IntEnum):
    """How an arena grew; the planner says what a run takes."""

    kNextPowerOfTwo = 0
    kSameAsRequested = 1


def set_arena_extend_strategy(strategy: ArenaExtendStrategy) -> None:
    """Do nothing: a run's memory is planned. It is said once."""
    say_once("set_arena_extend_strategy", "the memory of a run is planned ahead")


def set_cuda_device_id(device_id: int) -> None:
    """Do nothing: sessions run on the CPU unless ``providers=`` says more. It is said once."""
    say_once("set_cuda_device_id", CPU_ALONE)


def set_cuda_mem_limit(limit: int) -> None:
    """Do nothing: ``steep.Limits`` bounds memory. It is said once."""
    say_once("set_cuda_mem_limit", "steep.Limits bounds memory")


CPU_ALONE = "sessions run on the CPU, and on the devices that providers= names"

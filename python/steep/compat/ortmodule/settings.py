"""Functions of ONNX Runtime that set options of the whole process."""

from __future__ import annotations

import enum
import logging
import random

from steep.compat.notices import say_once

log = logging.getLogger("steep")

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_device() -> str:
    """Return the engine's default device: "CPU"."""
    return "CPU"


def set_seed(seed: int) -> None:
    """Seed Python's and PyTorch's generators, which dropouts and random operators use.

    Raises:
        ImportError: PyTorch is not installed; sessions have their own option ``seed``.
    """
    import torch

    random.seed(seed)
    torch.manual_seed(seed)


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger ``steep``: 0 (all) to 4 (fatal only). Raises ValueError."""
    if severity not in range(len(_LEVELS)):
        raise ValueError(f"severity must be 0 to {len(_LEVELS) - 1}, not {severity!r}")
    log.setLevel(_LEVELS[severity])


def enable_custom_autograd_support(to_enable: bool = True) -> None:
    """Do nothing: a ``torch.autograd.Function`` always runs with its own backward.

    If the engine cannot run one, PyTorch does. A request to disable this is logged once.
    """
    if not to_enable:
        say_once("enable_custom_autograd_support(False)", CUSTOM_AUTOGRAD)


CUSTOM_AUTOGRAD = "a torch.autograd.Function is captured with the backward that it says, always"


class _Enabler:
    """The state of ``custom_autograd_function_enabler``: always on."""

    state = True


custom_autograd_function_enabler = _Enabler()


def set_propagate_cast_ops_optimization(model: object, **settings: object) -> None:
    """Do nothing but log once: the precision determines the casts."""
    say_once("set_propagate_cast_ops_optimization", PROPAGATE_CASTS)


PROPAGATE_CASTS = "precision and torch.autocast say where products are of 16 bits"


class ArenaExtendStrategy(enum.IntEnum):
    """How an arena grows; without effect, since memory is planned."""

    kNextPowerOfTwo = 0
    kSameAsRequested = 1


def set_arena_extend_strategy(strategy: ArenaExtendStrategy) -> None:
    """Do nothing but log once: a run's memory is planned."""
    say_once("set_arena_extend_strategy", "the memory of a run is planned ahead")


def set_cuda_device_id(device_id: int) -> None:
    """Do nothing but log once: sessions run on the CPU, or on the devices of ``providers=``."""
    say_once("set_cuda_device_id", CPU_ALONE)


def set_cuda_mem_limit(limit: int) -> None:
    """Do nothing but log once: ``steep.Limits`` bounds memory."""
    say_once("set_cuda_mem_limit", "steep.Limits bounds memory")


CPU_ALONE = "sessions run on the CPU, and on the devices that providers= names"

"""The options that trainers and their sessions have in common."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from steep.providers import Providers
from steep.session.memory_limit import limit_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of ``steep.trainer`` and ``ORTTrainer``; ``TrainingSession`` documents them."""

    clip_norm: float
    clip_value: float
    precision: str
    loss_scale: float
    loss_scale_window: int
    check_finite: bool
    master_weights: bool
    stochastic_rounding: bool
    state_precision: str
    memory_limit: str | int
    offload_folder: str | os.PathLike[str]
    disabled_passes: Sequence[str]
    providers: Providers | None

    def settings(self) -> dict[str, Any]:
        """Return keyword arguments of ``TrainingSession``.

        Raises:
            ModelError: the memory limit is not a size.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"memory_limit": limit_text(self.memory_limit)}

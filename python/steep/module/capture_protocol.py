"""What ``ORTModule`` needs of a package that captures modules.

Both ``module/capture_backend.py`` and ``public_capture/capture_backend.py`` offer it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from steep.dynamo.report import GraphReport
from steep.providers import Providers

if TYPE_CHECKING:
    from steep.module import capture_backend
    from steep.public_capture import capture_backend as public_capture_backend


class CapturedModule(Protocol):
    """A module whose calls are captured; it is called like the module.

    Attributes:
        breaks: reasons for code that PyTorch runs between graphs, and for functions without one.
        left_on_purpose: whether PyTorch ran a call, or a part of one, by design.
    """

    breaks: list[str]
    left_on_purpose: bool

    @property
    def ran_in_engine(self) -> bool:
        """Whether a part of the module has run in the engine."""

    @property
    def graphs(self) -> Iterable[Any]:
        """The compiled graphs. Raises ModelError if they are not kept."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return the module's result."""


class CaptureBackend(Protocol):
    """A module of Python: ``capture_backend`` of either package."""

    def make_captured_module(
        self,
        module: torch.nn.Module,
        precision: str | None,
        record: Callable[[GraphReport], None],
        *,
        whole: bool,
        verify: bool | None,
        providers: Providers | None,
        disabled_passes: Sequence[str],
        memory_limit: str,
    ) -> CapturedModule:
        """Return a module whose calls are captured; ``record`` is told of each graph."""

    def refuse_transforms(self) -> None:
        """Raise ModelError within a mode or transform that needs PyTorch's operators."""

    def only_observed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether an exporter traces this call, which computes nothing."""

    def has_any_global_hook(self) -> bool:
        """Return whether PyTorch has hooks that run for every module."""


if TYPE_CHECKING:
    # Checked by mypy: both offer all of it.
    _tested: CaptureBackend = capture_backend
    _others: CaptureBackend = public_capture_backend

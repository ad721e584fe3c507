"""The modes and options of a call that is captured, read once and passed down.

Lowering reads neither PyTorch's modes nor the environment: each graph is made under one context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from steep._steep import ProviderChoice
from steep.onnx_graph.rewrite_hook import Rewrite, current_rewrite
from steep.torch_internals.dispatch import FakeTensorMode, TracingContext


def autocast_precision() -> str:
    """Return what the region of autocast around this call asks for."""
    if not torch.is_autocast_enabled("cpu"):
        return "fp32"
    dtype = torch.get_autocast_dtype("cpu")
    return "fp16" if dtype == torch.float16 else "bf16"  # autocast takes no others


@dataclasses.dataclass(frozen=True)
class CaptureContext:
    """The modes and choices that one captured graph is made under.

    Attributes:
        precision: "fp32", "bf16" or "fp16": what the engine computes in.
        autocast_enabled: whether a region of autocast is around the call.
        autocast_dtype: dtype of autocast regions that name none.
        grad_mode: whether PyTorch notes histories, so that backward may come.
        fake_mode: what Dynamo makes tensors without values under; it has the extents' symbols.
        providers: where the graph runs.
        disabled_passes: rewrites that are left out of its plan.
        memory_limit: of a call, as the engine reads it; "" for none.
        rewrite: what the user lets rewrite the model; None: nothing.
        verify: whether the first step is compared with PyTorch's.
        read_cache: whether a model of the cache will do; one that is made is stored in any case.
    """

    precision: str
    autocast_enabled: bool
    autocast_dtype: torch.dtype
    grad_mode: bool
    fake_mode: FakeTensorMode
    providers: tuple[ProviderChoice, ...] = ()
    disabled_passes: tuple[str, ...] = ()
    memory_limit: str = ""
    rewrite: Rewrite | None = None
    verify: bool = False
    read_cache: bool = True

    @classmethod
    def of_this_call(
        cls,
        precision: str,
        providers: Sequence[ProviderChoice] = (),
        disabled_passes: Sequence[str] = (),
        *,
        memory_limit: str = "",
        verify: bool = False,
    ) -> CaptureContext:
        """Return that of the call whose graph Dynamo, in this thread, is making."""
        tracing = TracingContext.try_get()
        assert tracing is not None and tracing.fake_mode is not None  # Dynamo's
        return cls(
            precision,
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_grad_enabled(),
            tracing.fake_mode,
            tuple(providers),
            tuple(disabled_passes),
            memory_limit,
            current_rewrite(),
            verify,
        )

    @property
    def autocast(self) -> torch.dtype | None:
        """What the region of autocast around the call narrows to; None without one."""
        return self.autocast_dtype if self.autocast_enabled else None

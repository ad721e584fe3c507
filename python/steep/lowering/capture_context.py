"""The modes and options of a captured call, read once and passed down.

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
    """Return the precision of autocast around this call: "fp32", "bf16" or "fp16"."""
    if not torch.is_autocast_enabled("cpu"):
        return "fp32"
    dtype = torch.get_autocast_dtype("cpu")
    return "fp16" if dtype == torch.float16 else "bf16"  # autocast on the CPU has no other dtypes


@dataclasses.dataclass(frozen=True)
class CaptureContext:
    """The modes and options under which one captured graph is made.

    Attributes:
        precision: "fp32", "bf16" or "fp16": the precision of the engine.
        autocast_enabled: whether autocast is on around the call.
        autocast_dtype: dtype of autocast regions that name none.
        grad_mode: whether PyTorch records autograd histories, so that backward may follow.
        fake_mode: Dynamo's FakeTensorMode, with the symbols of extents.
        providers: where the graph runs.
        disabled_passes: rewrites that are left out of its plan.
        memory_limit: limit for a call, as the engine reads it; "" for none.
        rewrite: the user's function that rewrites the model; None: none.
        verify: whether the first step is compared with PyTorch's.
        read_cache: whether to use a model of the cache; a new model is stored in any case.
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
        """Return the context of the call that Dynamo captures in this thread."""
        tracing = TracingContext.try_get()
        assert tracing is not None and tracing.fake_mode is not None  # set by Dynamo
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
        """The dtype of autocast around the call; None without autocast."""
        return self.autocast_dtype if self.autocast_enabled else None

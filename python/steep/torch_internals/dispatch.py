"""PyTorch's dispatcher: fake tensors, dispatch modes and the tracing context."""

from __future__ import annotations

from torch._C import (
    _get_dispatch_mode as dispatch_mode,
    _TorchDispatchModeKey as TorchDispatchModeKey,
)
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    fake_tensor_tls,
    unset_fake_temporarily,
)
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes as disable_current_modes,
    _get_current_dispatch_mode_stack as dispatch_mode_stack,
)

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "FunctionalTensorMode",
    "TorchDispatchMode",
    "TorchDispatchModeKey",
    "TracingContext",
    "detect_fake_mode",
    "disable_current_modes",
    "dispatch_functionalize",
    "dispatch_mode",
    "dispatch_mode_stack",
    "fake_impls",
    "fake_tensor_tls",
    "tracing",
    "unset_fake_temporarily",
]

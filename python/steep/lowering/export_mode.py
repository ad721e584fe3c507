"""The modes of PyTorch while a module is exported."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch.nn.modules import transformer

from steep.patching.restore import silence_loggers
from steep.patching.substitution import Substitution, substitute

DETECT_CAUSAL_MASK = Substitution(
    transformer,
    "_detect_is_causal_mask",
    "A transformer layer branches on the values of its mask, which no graph can; the result "
    "is the same.",
)


def is_causal_as_given(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """Return whether the caller says that a mask is causal; do not read its values."""
    return is_causal is True


@contextlib.contextmanager
def export_mode() -> Iterator[None]:
    """Silence PyTorch's logs, and turn off the modes that must not affect an export.

    Two shortcuts of PyTorch are off, since they branch on the values of a mask; neither changes a
    result. Autocast is off, since the engine handles precision. Errors are raised, so PyTorch need
    not log them together with the whole graph.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with (
            silence_loggers("torch", "onnxscript", "onnx_ir"),
            substitute({DETECT_CAUSAL_MASK: is_causal_as_given}),
            warnings.catch_warnings(),
            torch.enable_grad(),  # training_semantics.py needs it, as in training
            torch.autocast("cpu", enabled=False),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)

"""Captures PyTorch's own layers if their caller could not be captured."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType

import torch

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import trace_rules

CHECK = Substitution(
    trace_rules,
    "check",
    "Dynamo does not capture functions in PyTorch's own files: in a loop, every `nn.Linear` "
    "would be PyTorch's.",
)


@replaces(CHECK)
def layer_frames() -> Iterator[None]:
    """Capture the forward of PyTorch's own modules, as that of the user's modules.

    If a function branches on values inside a loop (such as ``nn.Sequential`` with such a module),
    Dynamo leaves the whole function to Python and captures the functions that it calls. It does not
    capture functions in PyTorch's own files, so PyTorch would run every ``nn.Linear`` in such a
    loop.
    """
    with substitute({CHECK: _skips}):
        yield


_rule = trace_rules.check


def _skips(obj: object, is_inlined_call: bool = False, frame: FrameType | None = None) -> bool:
    return not is_layer(frame) and _rule(obj, is_inlined_call, frame)


def is_layer(frame: FrameType | None) -> bool:
    """Return whether a frame is the forward of one of PyTorch's own layers.

    All layers of a class share this function, so it may have any number of graphs.
    """
    if frame is None or frame.f_code.co_name != "forward":
        return False
    module = frame.f_locals.get("self")
    return isinstance(module, torch.nn.Module) and type(module).__module__.startswith("torch.nn.")

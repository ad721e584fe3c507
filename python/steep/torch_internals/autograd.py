"""PyTorch's autograd: modes, saved-tensor hooks, levels of forward mode, autocast.

Graphs that Dynamo captures contain calls of some of these.
"""

from __future__ import annotations

from torch._C import (
    DisableTorchFunction,
    _enter_dual_level as enter_dual_level,
    _exit_dual_level as exit_dual_level,
    _set_grad_enabled as set_grad_enabled,
)
from torch._C._autograd import (  # type: ignore[attr-defined] # get_data_attr has no stub
    _get_current_graph_task_keep_graph as graph_is_kept,
    _get_data_attr as get_data_attr,
    _pop_saved_tensors_default_hooks as pop_saved_tensors_default_hooks,
    _push_saved_tensors_default_hooks as push_saved_tensors_default_hooks,
    _saved_tensors_hooks_disable as saved_tensors_hooks_disable,
    _saved_tensors_hooks_enable as saved_tensors_hooks_enable,
    _saved_tensors_hooks_get_disabled_error_message as saved_tensors_hooks_why_disabled,
    _top_saved_tensors_default_hooks as top_saved_tensors_default_hooks,
)
from torch.amp.autocast_mode import (
    _enter_autocast as enter_autocast,
    _exit_autocast as exit_autocast,
)
from torch.autograd import forward_ad

__all__ = [
    "DisableTorchFunction",
    "enter_autocast",
    "enter_dual_level",
    "exit_autocast",
    "exit_dual_level",
    "forward_level",
    "get_data_attr",
    "graph_is_kept",
    "pop_saved_tensors_default_hooks",
    "push_saved_tensors_default_hooks",
    "saved_tensors_hooks_disable",
    "saved_tensors_hooks_enable",
    "saved_tensors_hooks_why_disabled",
    "set_grad_enabled",
    "top_saved_tensors_default_hooks",
]


def forward_level() -> int:
    """Return the current level of forward-mode derivatives; -1 for none."""
    return int(forward_ad._current_level)

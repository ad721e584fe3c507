"""Dynamo's settings while Steep captures a module.

docs/substitutions.md lists them. ``torch._dynamo.config.patch`` sets them and restores the old
values. The settings belong to a thread.
"""

from __future__ import annotations

import dataclasses
import sys


@dataclasses.dataclass(frozen=True)
class DynamoSetting:
    """A value of ``torch._dynamo.config``.

    Attributes:
        name: its name there.
        value: its value during a capture.
        why: what would go wrong without it, in one sentence.
    """

    name: str
    value: object
    why: str


CAPTURE = (
    DynamoSetting(
        "skip_nnmodule_hook_guards",
        False,
        "A graph would stay valid after a hook of a module was added or removed.",
    ),
    DynamoSetting(
        "skip_no_tensor_aliasing_guards_on_parameters",
        False,
        "A graph would stay valid after two parameters became one tensor.",
    ),
    DynamoSetting(
        "use_lamba_guard_for_object_aliasing",
        True,
        "`dynamo/patches/extra_guards.py` adds to these guards; they are off from 2.14 on.",
    ),
    DynamoSetting(
        "fail_on_recompile_limit_hit", True, "PyTorch would run the module without a warning."
    ),
    DynamoSetting(
        "recompile_limit",
        sys.maxsize,
        "Steep counts graphs by module (`dynamo/recompiles.py`), PyTorch by code, which all "
        "modules of a class share.",
    ),
    DynamoSetting("accumulated_recompile_limit", sys.maxsize, "As for `recompile_limit`."),
    DynamoSetting(
        "allow_unspec_int_on_nn_module",
        True,
        "A number that a module counts up would need a new graph at each call; it is an input.",
    ),
    DynamoSetting("allow_rnn", True, "Recurrent layers would cut the graph."),
    DynamoSetting(
        "use_numpy_random_stream",
        True,
        "`numpy.random` would draw other numbers, from PyTorch's generator.",
    ),
    DynamoSetting(
        "capture_dynamic_output_shape_ops",
        True,
        "Operators whose result shapes depend on data would cut the graph.",
    ),
    DynamoSetting(
        "enable_dynamo_decompositions",
        False,
        "`addcmul_` and similar functions would become several operators, which round more often "
        "or have no translation.",
    ),
)
"""Settings during a capture."""

AUTOGRAD_GRAD = (
    DynamoSetting(
        "trace_autograd_ops",
        True,
        "A call of `torch.autograd.grad` in forward would cut the graph.",
    ),
)
"""Settings while Dynamo traces ``torch.autograd.grad`` (``lowering/autograd_grad.py``)."""

REFUSED_ARRAYS = (
    DynamoSetting(
        "trace_numpy",
        False,
        "A tensor that cannot become a NumPy array would become one, without PyTorch's error.",
    ),
)
"""Settings while Dynamo traces a call with such a tensor (``dynamo/patches/numpy_arrays.py``)."""

ZERO = (
    DynamoSetting(
        "specialize_float",
        True,
        "A zero would become a symbol, which has no sign: -0.0 would be 0.0.",
    ),
)
"""Settings while Dynamo wraps a float that is zero (``dynamo/patches/exact_numbers.py``)."""


def values_of(settings: tuple[DynamoSetting, ...]) -> dict[str, object]:
    """Return settings as keyword arguments of ``torch._dynamo.config.patch``."""
    return {setting.name: setting.value for setting in settings}

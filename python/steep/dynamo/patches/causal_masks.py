"""Masks of PyTorch's transformer layers: causal if the caller passes ``is_causal``."""

from __future__ import annotations

from collections.abc import Iterator

from steep.dynamo.patches.followed_functions import follow
from steep.lowering.export_mode import is_causal_as_given
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import trace_rules
from steep.torch_internals.nn import detect_is_causal_mask

RULE = Substitution(
    trace_rules,
    "get_torch_obj_rule_map",
    "A transformer layer branches on the values of its mask, which cuts the graph; the result is "
    "the same.",
    absent=True,
    key=detect_is_causal_mask,
)


@replaces(RULE)
def causal_masks() -> Iterator[None]:
    """Let Dynamo trace ``is_causal_as_given`` instead of PyTorch's test of a mask's values.

    PyTorch's function itself is not replaced: graphs guard on it, and the guard must hold later.
    """
    with substitute({RULE: follow(is_causal_as_given)}):
        yield

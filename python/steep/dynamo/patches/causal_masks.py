"""Masks of PyTorch's transformer layers: they are causal where the caller says so."""

from __future__ import annotations

from collections.abc import Iterator

from steep.dynamo.patches.followed_functions import followed
from steep.lowering.export_mode import is_causal_as_given
from steep.patching.substitution import Substitution, replaces, substituted
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
    """Within, Dynamo follows ``is_causal_as_given`` where PyTorch looks at a mask's values.

    The function of PyTorch stays in its place: graphs have a guard on it, which must hold later.
    """
    with substituted({RULE: followed(is_causal_as_given)}):
        yield

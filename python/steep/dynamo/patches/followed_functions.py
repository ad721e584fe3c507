"""Lets Dynamo trace a function of Steep in place of a function of PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable

from steep.torch_internals.dynamo import (
    GuardBuilder,
    Source,
    UserFunctionVariable,
    install_guard,
)


@functools.cache  # Dynamo keeps every class of its variables for ever
def follow(function: Callable[..., object]) -> type[UserFunctionVariable]:
    """Return a rule for ``get_torch_obj_rule_map``: Dynamo traces ``function`` instead.

    PyTorch's function itself is not replaced: graphs guard on it, and the guard must hold later.
    """

    class Followed(UserFunctionVariable):
        def __init__(self, fn: Callable[..., object], **options: object) -> None:
            super().__init__(function, **options)

        @classmethod
        def create_with_source(
            cls, value: Callable[..., object], source: Source
        ) -> UserFunctionVariable:
            install_guard(source.make_guard(GuardBuilder.CLOSURE_MATCH))
            return cls(value)

    return Followed

"""Functions of PyTorch that Dynamo takes for others of ours."""

from __future__ import annotations

from collections.abc import Callable

from steep.torch_internals.dynamo import (
    GuardBuilder,
    Source,
    UserFunctionVariable,
    install_guard,
)


def followed(function: Callable[..., object]) -> type[UserFunctionVariable]:
    """Return what has Dynamo follow a function, as the rule of one of PyTorch's.

    That of PyTorch stays in its place: graphs have a guard on it, which must hold later.
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

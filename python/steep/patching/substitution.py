"""The registry of what Steep replaces in PyTorch, for a while.

Each file that replaces something declares it as a ``Substitution``, with the reason. ``DECLARED``
lists them all; docs/substitutions.md is made of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from steep.patching.torch_versions import RELEASE

DECLARED: list[Substitution] = []
"""Every substitution of the modules that are loaded, in the order in which these were."""


@dataclasses.dataclass(frozen=True, eq=False)
class Substitution:
    """A function or attribute of PyTorch's that Steep replaces for a while.

    Attributes:
        owner: the module, class or object that has it, of its own or inherited.
        name: its name there.
        why: what would go wrong without, in one sentence.
        since: the first release of PyTorch, as (2, 14), that it is replaced in; None for every one.
        until: the first release that it is not replaced in any more; None for no such.
        absent: PyTorch has no such attribute of the class: each object has one of its own.
    """

    owner: Any
    name: str
    why: str
    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None
    absent: bool = False

    def __post_init__(self) -> None:
        DECLARED.append(self)

    @property
    def applies(self) -> bool:
        """Whether it is replaced in the release of PyTorch that is loaded."""
        after = self.since is None or self.since <= RELEASE
        return after and (self.until is None or self.until > RELEASE)

    @property
    def target(self) -> str:
        """The dotted name."""
        owner = self.owner
        if not hasattr(owner, "__name__"):
            owner = type(owner)
        module = getattr(owner, "__module__", None)
        path = owner.__name__ if module is None else f"{module}.{owner.__qualname__}"
        return f"{path}.{self.name}"


@contextlib.contextmanager
def substituted(replacements: Mapping[Substitution, Any]) -> Iterator[None]:
    """Put each replacement that applies in the place of its target, for all threads.

    On every way out of the ``with`` block, the targets are restored in reverse order. Threads:
    the caller holds the lock of PyTorch's compiler or ``lower.lowering_lock()``, or a replacement
    checks in which thread it is called. Signals: ``signals.Held`` keeps Ctrl-C from coming in
    between.

    Raises:
        AttributeError: this version of PyTorch has no such target.
    """
    with contextlib.ExitStack() as stack:
        for s, value in ((s, v) for s, v in replacements.items() if s.applies):
            stack.enter_context(attribute_set(s.owner, s.name, value, absent=s.absent))
        yield


@contextlib.contextmanager
def attribute_set(
    owner: object, name: str, value: object, *, absent: bool = False
) -> Iterator[None]:
    """Within, an attribute has a value; for an object of one run, which no table can name.

    Raises AttributeError where there is no such attribute, unless it is to be ``absent``.
    """
    if not absent:
        getattr(owner, name)
    own = name in vars(owner)  # otherwise it is inherited, and is to be again
    before = vars(owner).get(name)
    try:
        setattr(owner, name, value)
        yield
    finally:
        if own:
            setattr(owner, name, before)
        elif name in vars(owner):
            delattr(owner, name)

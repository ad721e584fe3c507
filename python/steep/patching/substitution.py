"""The registry of Steep's temporary replacements in PyTorch.

Each file that replaces something declares it as a ``Substitution``, with the reason. ``DECLARED``
lists them all; docs/substitutions.md is generated from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from steep.patching.torch_versions import RELEASE, lacks
from steep.torch_internals.dynamo import convert_frame

P = ParamSpec("P")
T = TypeVar("T")

DECLARED: list[Substitution] = []
"""The substitutions of all loaded modules, in the order of loading."""

_NO_KEY = object()


@dataclasses.dataclass(frozen=True, eq=False)
class Substitution:
    """A function, attribute or dict entry of PyTorch that Steep replaces for a while.

    Attributes:
        owner: the module, class or object that has it, of its own or inherited.
        name: its name there.
        why: what would go wrong without it, in one sentence.
        since: the first release of PyTorch, as (2, 14), in which it is replaced; None for all.
        until: the first release in which it is no longer replaced; None for none.
        absent: PyTorch may lack the attribute of the class, since each object has one of its own,
            or the entry of the dict.
        like: another attribute of the owner, which PyTorch has and looks up in the same way. If
            PyTorch lacks both, nothing would look up the ``absent`` one.
        key: the key of the replaced entry, in the dict of this name or in the dict that the
            function of this name returns.
        order: among the substitutions of one target, those of a greater number are entered later;
            they are called first, and call the earlier one.
    """

    owner: Any
    name: str
    why: str
    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None
    absent: bool = False
    like: str = ""
    key: Any = _NO_KEY
    order: int = 0

    def __post_init__(self) -> None:
        DECLARED.append(self)

    @property
    def applies(self) -> bool:
        """Whether it is replaced in the installed release of PyTorch."""
        after = self.since is None or self.since <= RELEASE
        return after and (self.until is None or self.until > RELEASE)

    @property
    def target(self) -> str:
        """The dotted name; for an entry of a dict, with its key."""
        owner = self.owner
        if not hasattr(owner, "__name__"):
            owner = type(owner)
        path = f"{_path(owner)}.{self.name}"
        return path if self.key is _NO_KEY else f"{path}[{_path(self.key)}]"

    @property
    def exists(self) -> bool:
        """Whether the installed PyTorch has the target, or may lack it as declared."""
        if self.absent and self.key is _NO_KEY:
            return not self.like or hasattr(self.owner, self.like)
        there = hasattr(self.owner, self.name)
        return there and (self.absent or self.key is _NO_KEY or self.key in self.entries)

    @property
    def entries(self) -> dict[Any, Any]:
        """The dict that contains the entry."""
        table = getattr(self.owner, self.name)
        entries: dict[Any, Any] = table() if callable(table) else table
        return entries

    def replace_by(self, value: object) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that replaces the target by a value, and restores it."""
        if self.key is _NO_KEY:
            return attribute_set(self.owner, self.name, value, absent=self.absent)
        return _entry_set(self.entries, self.key, value, absent=self.absent)


def _path(value: Any) -> str:
    """Return the dotted name of a module, class, function or operator."""
    module = getattr(value, "__module__", None)
    if module is None:
        return str(getattr(value, "__name__", value))  # the key of an entry may be a str
    return f"{module}.{value.__qualname__.rpartition('::')[2]}"  # an operator's is "aten::add.out"


def changes_lock() -> contextlib.AbstractContextManager[bool]:
    """Return the lock that a thread holds while it replaces anything.

    It is the lock of PyTorch's compiler: a capturing thread holds it already, and an export may
    take it. With two locks, two threads could wait for each other.
    """
    lock: contextlib.AbstractContextManager[bool] = convert_frame.compile_lock
    return lock


@contextlib.contextmanager
def substitute(replacements: Mapping[Substitution, Any]) -> Iterator[None]:
    """Replace the targets of the substitutions that apply, for all threads.

    On every way out of the ``with`` block, the targets are restored in reverse order. Threads: a
    lock admits one thread at a time, since a second one would restore the first one's replacements.
    Other threads that run meanwhile see the replacements. Signals: ``DelayedSignals`` keeps Ctrl-C
    from interrupting it.

    Raises:
        ModelError: the installed PyTorch has no such target; none is replaced then.
    """
    applying = [(s, value) for s, value in replacements.items() if s.applies]
    with changes_lock(), contextlib.ExitStack() as stack:
        for s, _ in applying:
            if not s.exists:
                raise lacks(s.target)
        for s, value in applying:
            stack.enter_context(s.replace_by(value))
        yield


class Change(Generic[T]):
    """A context manager that makes declared substitutions; functions under ``replaces`` return it.

    Attributes:
        order: the greatest order of its substitutions.
    """

    def __init__(
        self, context: contextlib.AbstractContextManager[T], entries: tuple[Substitution, ...]
    ) -> None:
        self._context = context
        self.order = max(s.order for s in entries)

    def __enter__(self) -> T:
        """Replace the targets."""
        return self._context.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Restore the targets."""
        return self._context.__exit__(kind, error, trace)


def replaces(
    *entries: Substitution,
) -> Callable[[Callable[P, Iterator[T]]], Callable[P, Change[T]]]:
    """Return a decorator as ``contextlib.contextmanager``, for functions that replace ``entries``.

    The context managers also have an ``order``, in which several must be entered.
    """

    def decorate(function: Callable[P, Iterator[T]]) -> Callable[P, Change[T]]:
        manager = contextlib.contextmanager(function)

        @functools.wraps(function)
        def change(*args: P.args, **kwargs: P.kwargs) -> Change[T]:
            return Change(manager(*args, **kwargs), entries)

        return change

    return decorate


@contextlib.contextmanager
def attribute_set(
    owner: object, name: str, value: object, *, absent: bool = False
) -> Iterator[None]:
    """Set an attribute inside the ``with`` block; for objects that ``DECLARED`` cannot name.

    Raises AttributeError if there is no such attribute, unless ``absent`` is set.
    """
    if not absent:
        getattr(owner, name)
    own = name in vars(owner)  # otherwise it is inherited: delete ours at the end
    before = vars(owner).get(name)
    try:
        setattr(owner, name, value)
        yield
    finally:
        if own:
            setattr(owner, name, before)
        elif name in vars(owner):
            delattr(owner, name)


@contextlib.contextmanager
def _entry_set(
    entries: dict[Any, Any], key: object, value: object, *, absent: bool
) -> Iterator[None]:
    """Set an entry of a dict inside the ``with`` block; raises KeyError if it is missing."""
    if key not in entries and not absent:
        raise KeyError(key)
    before = entries.get(key, _NO_KEY)
    try:
        entries[key] = value
        yield
    finally:
        if before is _NO_KEY:
            entries.pop(key, None)
        else:
            entries[key] = before

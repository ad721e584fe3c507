"""Arguments that are lists of names."""

from __future__ import annotations

from collections.abc import Iterable

from steep.errors import ModelError


def names_of(names: Iterable[str] | None, argument: str) -> list[str]:
    """Return the names as a list; none for None.

    Raises:
        ModelError: one text, which Python would take for a list of its letters: of "w*", the star
            stands for all names.
    """
    if isinstance(names, str):
        raise ModelError(
            f"{argument} takes a list of names.",
            node=argument,
            expected=f"[{names!r}]",
            received=repr(names),
        )
    return list(names or ())

"""The option ``memory_limit``: how much memory a run may use."""

from __future__ import annotations

from steep import _steep


def limit_text(limit: str | int) -> str:
    """Return a memory limit as text for the engine: "2GiB", or a number of bytes.

    Raises:
        TypeError: it is neither text nor a whole number.
        ModelError: it cannot be read, or is not above 0.
    """
    if isinstance(limit, bool) or not isinstance(limit, str | int):
        raise TypeError(f'memory_limit is text as "2GiB" or a number of bytes, not {limit!r}')
    text = limit if isinstance(limit, str) else str(limit)
    _steep.check_memory_limit(text)
    return text

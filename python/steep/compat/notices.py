"""What is asked for and has no meaning here is said, once."""

from __future__ import annotations

import logging

log = logging.getLogger("steep")

_said: set[str] = set()


def say_once(subject: str, why: str) -> None:
    """Warn, at the first time in this process, that ``subject`` changes nothing, and why."""
    if subject not in _said:
        _said.add(subject)
        log.warning("%s changes nothing here: %s", subject, why)


def forget() -> None:
    """Say everything again. For tests."""
    _said.clear()

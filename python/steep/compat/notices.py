"""Warns once about each option that has no effect here."""

from __future__ import annotations

import logging

log = logging.getLogger("steep")

_said_subjects: set[str] = set()


def say_once(subject: str, why: str) -> None:
    """Warn, the first time in this process, that ``subject`` has no effect, and why."""
    if subject not in _said_subjects:
        _said_subjects.add(subject)
        log.warning("%s changes nothing here: %s", subject, why)


def forget() -> None:
    """Forget which warnings were logged. For tests."""
    _said_subjects.clear()

"""Ctrl-C, and what else a signal raises, while something is changed for a while and put back."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any


class Held:
    """Within, handlers of signals that are Python's wait; they are called at the end.

    An exception that a handler raises (``KeyboardInterrupt``) comes between any two instructions: a
    function that is replaced for a while stays so where it comes before the ``try``, or in the
    midst of the ``finally``. So what changes something stands between two of these::

        with Held() as held, substituted(…), held.open():
            ...  # a handler is called at once

    What a handler raised is raised at the end again, if it was taken for an error of what ran. In
    other threads than the main one, where Python calls no handlers, this does nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: list[tuple[int, FrameType | None]] = []
        self._open = False
        self._raised: BaseException | None = None

    def __enter__(self) -> Held:
        """Take the place of the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in sorted(signal.valid_signals(), reverse=True):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put them back, unless another was set meanwhile; call those that wait."""
        self._open = False
        for number, handler in self._handlers.items():  # Ctrl-C's comes last
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)
        self._call()
        if self._raised is not None and error is not self._raised:
            raise self._raised

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Within, handlers are called at once."""
        try:
            self._open = True
            self._call()
            yield
        finally:
            self._open = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._waiting.append((number, frame))
        if self._open:
            self._call()

    def _call(self) -> None:
        while self._waiting:
            number, frame = self._waiting.pop(0)
            try:
                self._handlers[number](number, frame)
            except BaseException as e:
                self._raised = e
                raise

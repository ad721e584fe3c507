"""Delays Ctrl-C and other signals while PyTorch is changed or traced."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any


class _Waiting:
    """The signals that wait, and the handlers that they wait for; the main thread's alone."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self.signals: list[tuple[int, FrameType | None]] = []
        self.depth = 0  # of Held
        self.tracing = False
        self.raised: BaseException | None = None

    def take_handlers(self) -> None:
        """Take the place of the handlers that are Python's; nothing waits from before."""
        self.handlers, self.signals, self.raised = {}, [], None
        for number in sorted(signal.valid_signals(), reverse=True):
            handler = signal.getsignal(number)
            if callable(handler):
                self.handlers[number] = handler
                signal.signal(number, self._receive)

    def return_handlers(self) -> None:
        """Put them back, unless another was set meanwhile."""
        for number, handler in self.handlers.items():  # Ctrl-C's comes last
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)

    def deliver(self) -> None:
        """Call the handlers that are waited for; raise what one of them raises, or once raised."""
        while self.signals:
            number, frame = self.signals.pop(0)
            try:
                self.handlers[number](number, frame)
            except BaseException as e:
                self.raised = e
                raise
        if self.raised is not None:
            raise self.raised

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = any(number == before for before, _ in self.signals)
        self.signals.append((number, frame))
        if again and self.tracing:
            self.deliver()


_waiting = _Waiting()


class Held:
    """Within, handlers of signals that are Python's wait; they are called at the end.

    An exception that a handler raises (``KeyboardInterrupt``) comes between any two instructions. A
    function that is replaced for a while stays so where it comes before the ``try``, or in the
    midst of the ``finally``. The same holds for what PyTorch's tracers, and ``logging``, change for
    a while: locks that stay locked, modes that stay on. So what changes something, and what traces,
    stands between two of these::

        with Held() as held, substituted(…), held.tracing():
            ...  # a handler is called where deliver_signals() is

    If the code treated a handler's exception as its own error, the exception is raised again at the
    end. In other threads than the main one, where Python calls no handlers, this does nothing. It
    nests.
    """

    def __enter__(self) -> Held:
        """Take the place of the handlers."""
        self._counts = threading.current_thread() is threading.main_thread()
        if self._counts:
            self._traced, _waiting.tracing = _waiting.tracing, False
            _waiting.depth += 1
            if _waiting.depth == 1:
                _waiting.take_handlers()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put them back, and call those that wait."""
        if not self._counts:
            return
        _waiting.tracing = self._traced
        _waiting.depth -= 1
        if _waiting.depth == 0:
            _waiting.return_handlers()
            raised, _waiting.raised = _waiting.raised, None  # it holds the frames that it left
            _waiting.deliver()
            if raised is not None and raised is not error:
                raise raised

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Within, ``deliver_signals()`` calls handlers, and a second signal does not wait."""
        if not self._counts:
            yield
            return
        try:
            _waiting.tracing = True
            deliver_signals()
            yield
        finally:
            _waiting.tracing = False


def deliver_signals() -> None:
    """Call the handlers that wait: an exception here leaves nothing half changed."""
    if _waiting.tracing and threading.current_thread() is threading.main_thread():
        _waiting.deliver()

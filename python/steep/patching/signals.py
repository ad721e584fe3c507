"""Delays Ctrl-C and other signals while PyTorch is changed or traced."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any


class _Waiting:
    """The pending signals, and the replaced handlers; for the main thread only."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self.signals: list[tuple[int, FrameType | None]] = []
        self.depth = 0  # how many DelayedSignals are active
        self.tracing = False
        self.error: BaseException | None = None

    def take_handlers(self) -> None:
        """Replace all Python handlers; forget signals and errors from before."""
        self.handlers, self.signals, self.error = {}, [], None
        for number in sorted(signal.valid_signals(), reverse=True):
            handler = signal.getsignal(number)
            if callable(handler):
                self.handlers[number] = handler
                signal.signal(number, self._receive)

    def return_handlers(self) -> None:
        """Restore the handlers, except those that were replaced meanwhile."""
        for number, handler in self.handlers.items():  # Ctrl-C's comes last
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)

    def deliver(self) -> None:
        """Call the handlers of pending signals; raise what a handler raises, or has raised."""
        while self.signals:
            number, frame = self.signals.pop(0)
            try:
                self.handlers[number](number, frame)
            except BaseException as e:
                self.error = e
                raise
        if self.error is not None:
            raise self.error

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = any(number == before for before, _ in self.signals)
        self.signals.append((number, frame))
        if again and self.tracing:
            self.deliver()


_waiting = _Waiting()


class DelayedSignals:
    """Delays Python's signal handlers; they are called at the end.

    An exception from a handler (``KeyboardInterrupt``) can occur between any two instructions. If
    it occurs before a ``try``, or inside a ``finally``, a function that is replaced for a while
    stays replaced. The same holds for temporary changes by PyTorch's tracers and by ``logging``:
    locks stay locked, modes stay on. So code that changes PyTorch, and code that traces, runs
    inside of this::

        with DelayedSignals() as signals, substitute(…), signals.tracing():
            ...  # a handler is called where deliver_signals() is

    If the code treated a handler's exception as its own error, the exception is raised again at the
    end. In threads other than the main one, where Python calls no handlers, this does nothing. It
    may be nested.
    """

    def __enter__(self) -> DelayedSignals:
        """Replace the handlers."""
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
        """Restore the handlers, and call those of pending signals."""
        if not self._counts:
            return
        _waiting.tracing = self._traced
        _waiting.depth -= 1
        if _waiting.depth == 0:
            _waiting.return_handlers()
            handler_error, _waiting.error = (
                _waiting.error,
                None,
            )  # an exception keeps its frames alive
            _waiting.deliver()
            if handler_error is not None and handler_error is not error:
                raise handler_error

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Let ``deliver_signals()`` call handlers; a repeated signal is delivered at once."""
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
    """Call the handlers of pending signals, at a place where an exception is harmless."""
    if _waiting.tracing and threading.current_thread() is threading.main_thread():
        _waiting.deliver()

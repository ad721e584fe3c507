"""Inspection of compiled graphs: dumps, HTML pages, profiles, logs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from steep import _steep

StrPath = str | os.PathLike[str]


def make_dump(dump: Callable[[str], str], html: StrPath | None, passes: bool) -> str:
    """Return a dump as text; also write it as a page to the path ``html``, if given.

    ``dump`` is called with "text", "passes" or "html". Raises IoError.
    """
    if html is not None:
        _steep.write_file(os.fspath(html), dump("html").encode())
    return dump("passes" if passes else "text")


@contextlib.contextmanager
def record_profile(
    start: Callable[[], None], write: Callable[[str], None], path: StrPath
) -> Iterator[None]:
    """Record all kernels in the ``with`` block; write the trace at the end. Raises IoError."""
    start()
    try:
        yield
    finally:
        write(os.fspath(path))


class ProfiledGraph(Protocol):
    """A graph whose kernels can be recorded."""

    def start_profile(self) -> None:
        """Start recording."""

    def end_profile(self) -> str:
        """Return the events as JSON; times are relative to the start."""


def trace_of(profiles: Sequence[tuple[ProfiledGraph, float]]) -> str:
    """End these profiles; return one trace, with a process for each.

    Each profile comes with its start time in seconds.
    """
    first = min((began for _, began in profiles), default=0.0)
    events: list[dict[str, Any]] = []
    for number, (graph, began) in enumerate(profiles, 1):
        for event in json.loads(graph.end_profile())["traceEvents"]:
            event["pid"] = number
            if "ts" in event:
                event["ts"] += 1e6 * (began - first)
            events.append(event)
        name = {"name": f"graph {number}"}
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": name})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def join_pages(pages: Sequence[str]) -> str:
    """Join HTML pages, one for each graph, to one page."""
    head, _, _ = pages[0].partition("<body>")
    bodies = []
    for number, page in enumerate(pages, 1):
        body = page.partition("<body>")[2].rpartition("</body>")[0]
        body = body.replace('href="#p', f'href="#g{number}p').replace('id="p', f'id="g{number}p')
        body = body.replace("<h1>Compiled graph</h1>", f"<h1>Graph {number} of {len(pages)}</h1>")
        bodies.append(body)
    return f"{head}<body>\n{''.join(bodies)}</body></html>\n"


def write_log(kind: str, text: str) -> None:
    """Write text to standard error if ``STEEP_LOGS`` contains ``kind``."""
    if _steep.logs(kind):
        _steep.log(kind, text)

"""Inspection of compiled graphs: dumps, HTML pages, profiles, logs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from steep import _steep

StrPath = str | os.PathLike[str]


def dumped(dump: Callable[[str], str], html: StrPath | None, passes: bool) -> str:
    """Return the dump that was asked for as text; write it as a page where ``html`` says.

    ``dump`` is given "text", "passes" or "html". Raises IoError.
    """
    if html is not None:
        _steep.write_file(os.fspath(html), dump("html").encode())
    return dump("passes" if passes else "text")


@contextlib.contextmanager
def profiled(
    start: Callable[[], None], write: Callable[[str], None], path: StrPath
) -> Iterator[None]:
    """Within, all kernels are recorded; then the trace is written. Raises IoError."""
    start()
    try:
        yield
    finally:
        write(os.fspath(path))


class Recorded(Protocol):
    """A graph of which every kernel can be recorded."""

    def start_profile(self) -> None:
        """Record from now on."""

    def end_profile(self) -> str:
        """Return the events as JSON, with times from when it began."""


def trace_of(recorded: Sequence[tuple[Recorded, float]]) -> str:
    """End these profiles; return one trace, a process for each.

    With each comes when it began, in seconds.
    """
    first = min((began for _, began in recorded), default=0.0)
    events: list[dict[str, Any]] = []
    for number, (graph, began) in enumerate(recorded, 1):
        for event in json.loads(graph.end_profile())["traceEvents"]:
            event["pid"] = number
            if "ts" in event:
                event["ts"] += 1e6 * (began - first)
            events.append(event)
        name = {"name": f"graph {number}"}
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": name})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def one_page(pages: Sequence[str]) -> str:
    """Join pages, each of one graph, to one."""
    head, _, _ = pages[0].partition("<body>")
    bodies = []
    for number, page in enumerate(pages, 1):
        body = page.partition("<body>")[2].rpartition("</body>")[0]
        body = body.replace('href="#p', f'href="#g{number}p').replace('id="p', f'id="g{number}p')
        body = body.replace("<h1>Compiled graph</h1>", f"<h1>Graph {number} of {len(pages)}</h1>")
        bodies.append(body)
    return f"{head}<body>\n{''.join(bodies)}</body></html>\n"


def tell(kind: str, text: str) -> None:
    """Write to standard error what ``STEEP_LOGS`` asks for; nothing where it does not."""
    if _steep.logs(kind):
        _steep.log(kind, text)

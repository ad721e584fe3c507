"""The log of benchmarks: one section for each run, the newest first.

`bench/run.py --log docs/benchmarks_log.md`, as `make bench` calls it, adds one.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from report import Row, table

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# Log of benchmarks

For readers who want to compare versions of Steep: the tables of each run of `make bench`.

`make bench` adds a section to this page, the newest first. [Benchmarks](benchmarks.md) says what is
compared, and how to read the tables. It has the results of 2026-11, which are older than this page.
"""


@dataclass(frozen=True)
class Conditions:
    """When, from which sources and where a run was made."""

    date: str
    commit: str
    processor: str
    versions: str

    def __str__(self) -> str:
        return f"{self.processor}. {self.versions}."


def conditions(threads: int, isa: str | None) -> Conditions:
    """Return those of now, on this machine; ``isa`` is the widest that is used."""
    description = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty=, changed", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    settings = ["one thread" if threads == 1 else f"{threads} threads", *([isa] if isa else [])]
    names = {"Steep": steep_version(), "PyTorch": importlib.metadata.version("torch")}
    names |= {"Python": platform.python_version(), platform.system(): platform.release()}
    return Conditions(
        datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        description.stdout.strip() or "unknown",
        ", ".join([processor(), *settings]),
        ", ".join(f"{name} {version}" for name, version in names.items()),
    )


def steep_version() -> str:
    """Return the version of the sources."""
    text = (ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "([^"]+)"$', text, re.M)
    return str(version)


def processor() -> str:
    """Return the name of the processor, as Linux has it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*: (.*)$", text, re.M)
    return match[1].strip() if match else platform.machine()


def section(now: Conditions, tables: dict[str, list[Row]]) -> str:
    """Write a run as a section: ``tables`` has the rows of each precision."""
    parts = [f"## {now.date}, commit {now.commit}", str(now)]
    for precision, rows in tables.items():
        parts += [f"{precision}:", table(rows)]
    return "\n\n".join(parts) + "\n"


def add(page: Path, section: str) -> None:
    """Put a section in front of the others; make the page if there is none."""
    text = page.read_text() if page.exists() else HEAD
    head, mark, others = text.partition("\n## ")
    page.write_text(f"{head.rstrip()}\n\n{section}" + (f"\n## {others}" if mark else ""))

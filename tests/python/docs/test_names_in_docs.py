"""Every public name that a document or an example mentions can be imported."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from checkout import ROOT

pytest.importorskip("torch")

NAME = re.compile(r"(?<![\w/.:_-])(steep(?:\.\w+)+)(?!\w| import)")
IMPORT = re.compile(r"^\s*from (steep[\w.]*) import (\([^)]*\)|.*)$", re.M)


def documents() -> list[Path]:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
    return [
        *pages,
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.py")),
    ]


def names_in(text: str) -> set[str]:
    """``steep.X`` in code and prose, and what is imported."""
    found = set(NAME.findall(text))
    for module, names in IMPORT.findall(text):
        for name in names.partition("#")[0].strip("() \n").split(","):
            if name.strip():
                found.add(f"{module}.{name.split(' as ')[0].strip()}")
    return found


def words_of_the_engine() -> set[str]:
    """Names of operators, and of metadata of nodes: they begin with ``steep.``, too."""
    sources = [f for f in (ROOT / "src").rglob("*") if f.suffix in {".cc", ".h"}]
    found: set[str] = set().union(*(re.findall(r"\bsteep\.\w+", f.read_text()) for f in sources))
    assert {"steep.Fused", "steep.stop_gradient"} <= found
    return found


PLANNED = {"steep.AllReduce"}
"""Operators that design.md considers."""


def can_be_imported(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[count:]:
                value = getattr(value, part)
        except AttributeError:
            return False
        return True
    return False


def test_every_name_that_documents_mention_can_be_imported() -> None:
    found: dict[str, list[str]] = {}
    for document in documents():
        for name in names_in(document.read_text()):
            found.setdefault(name, []).append(str(document.relative_to(ROOT)))
    engine = words_of_the_engine()
    public = {name for name in found if name not in engine | PLANNED}
    assert {"steep.trainer", "steep.ORTModule", "steep.compat.ortmodule.debug_options"} <= public
    assert {n: found[n] for n in sorted(public) if not can_be_imported(n)} == {}


def test_what_is_no_name_is_seen() -> None:
    text = "`steep.Trainer` and\nfrom steep.session import (\n    training as t,\n    nothing,\n)\n"
    assert names_in(text) == {"steep.Trainer", "steep.session.training", "steep.session.nothing"}
    assert can_be_imported("steep.session.training")
    assert not can_be_imported("steep.session.nothing")
    assert not can_be_imported("steep.Trainer.nothing")

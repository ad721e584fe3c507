"""`make bench` adds its tables to docs/benchmarks_log.md, with date, commit and machine."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module bench/log.py, whose folder is not on the path otherwise."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("log")


def rows(step_ms: float) -> list[Any]:
    """One work, in which Steep takes step_ms and PyTorch 100 ms."""
    report = importlib.import_module("report")
    row = report.Row("lm", "language model", "fp32", 2, None, limit_ms=20.0)
    row.results["default"] = report.Result(100.0, 1.5, 700.0)
    row.results["trainer"] = report.Result(step_ms, 2.5, 600.0, {"default": 100 / step_ms})
    return [row]


def test_each_run_is_a_section_and_the_newest_is_first(log: Any, tmp_path: Path) -> None:
    page = tmp_path / "benchmarks_log.md"
    for day, step_ms in (("2026-01-02", 50.0), ("2026-03-04", 40.0)):
        now = log.Conditions(day, "abc1234", "a processor, 2 threads", "Steep 0.1.0")
        log.add(page, log.section(now, {"fp32": rows(step_ms), "bf16": rows(step_ms / 2)}))
    text = page.read_text()
    assert text.startswith(log.HEAD)
    assert re.findall(r"^## (.*)$", text, re.M) == [
        "2026-03-04, commit abc1234",
        "2026-01-02, commit abc1234",
    ]
    newest, oldest = text.split("\n## ")[1:]
    assert "a processor, 2 threads. Steep 0.1.0." in newest
    assert "|  | Steep, trainer | 40 ms | 2.50× |  | 50% | 600 | 2.5 |" in newest
    assert "| 20 ms | 5.00× |" in newest.partition("bf16:")[2]
    assert "| 50 ms | 2.00× |" in oldest


def test_a_section_says_commit_processor_and_versions(log: Any) -> None:
    pytest.importorskip("torch")
    now = log.conditions(1, "avx2")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", now.date)
    assert now.commit == "unknown" or re.match(r"[0-9a-f]{7,}", now.commit)
    assert now.processor.endswith(", one thread, avx2")
    assert re.search(r"Steep [\d.]+, PyTorch [\d.]+\S*, Python [\d.]+", now.versions)


def test_the_page_is_one_that_the_log_continues(log: Any) -> None:
    assert (ROOT / "docs" / "benchmarks_log.md").read_text().startswith(log.HEAD)

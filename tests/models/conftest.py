"""Prints which models trained, by whom they were exported and at which opset."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    table: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport) or report.when != "call":
                continue
            for key, value in report.user_properties:
                if key != "model":
                    continue
                model, way = str(value).split("|")
                table.setdefault(model, {})[way] = report.outcome
                if way not in columns:
                    columns.append(way)
    if not table:
        return
    columns.sort(key=lambda way: [int(w) if w.isdigit() else w for w in way.split()])
    terminalreporter.section("models that trained, by exporter and opset")
    for cells in (["model", *columns], ["---"] * (len(columns) + 1)):
        terminalreporter.write_line(f"| {' | '.join(cells)} |")
    for model, ways in table.items():
        cells = [ways.get(way, "").replace("passed", "yes") for way in columns]
        terminalreporter.write_line(f"| {' | '.join([model, *cells])} |")

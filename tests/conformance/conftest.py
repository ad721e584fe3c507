from __future__ import annotations

import pytest

from .suite import summary


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for rs in terminalreporter.stats.values() for r in rs]
    kinds = [
        str(value)
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for key, value in report.user_properties
        if key == "conformance"
    ]
    if kinds:
        terminalreporter.write_line(summary(kinds))

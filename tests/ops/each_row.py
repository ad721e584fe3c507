"""A check of one row as a test for each operator: a test for each row costs minutes of its own."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from rows.row import Row

SHOWN = 5  # failures in full; all are named


def each_row(rows: Iterable[Row]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make `check(row, …)` a test of each operator, which runs on all its rows and names faults.

    What else the check takes are fixtures and parameters. Rows for float64 only are not run with
    `dtype` float32.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.op, []).append(row)

    def made(check: Callable[..., None]) -> Callable[..., None]:
        def test(op: str, **given: Any) -> None:
            run(check, groups[op], given)

        functools.update_wrapper(test, check)
        others = [name for name in inspect.signature(check).parameters if name != "row"]
        test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in ("op", *others)]
        )
        return pytest.mark.parametrize("op", list(groups))(test)

    return made


def run(check: Callable[..., None], rows: list[Row], given: dict[str, Any]) -> None:
    """Check each row, whatever becomes of those before."""
    faults = {}
    for row in rows:
        if row.double and given.get("dtype") is np.float32:
            continue
        try:
            check(row=row, **given)
        except Exception:
            faults[row.name] = traceback.format_exc()
    if faults:
        shown = "\n".join(f"{name}:\n{text}" for name, text in list(faults.items())[:SHOWN])
        names = "\n  ".join(faults)
        pytest.fail(f"{len(faults)} of {len(rows)} rows:\n  {names}\n\n{shown}", pytrace=False)

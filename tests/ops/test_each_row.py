"""A check that stands for many rows names each one that fails."""

from __future__ import annotations

import inspect

import each_row
import numpy as np
import pytest
from rows.row import Row


def rows():
    one, two = np.ones(1), np.ones(2)
    return [
        Row("Neg", (one,)),
        Row("Abs", (one,)),
        Row("Neg", (two,), note="bad"),
        Row("Neg", (one,), note="bad"),
        Row("Neg", (one,), note="bad in double", double=True),
    ]


def test_all_rows_run_and_those_that_fail_are_named():
    seen = []

    def check(row, dtype, other):
        seen.append((row.name, dtype, other))
        assert "bad" not in row.note, "the check's own words"

    test = each_row.each_row(rows())(check)
    assert list(inspect.signature(test).parameters) == ["op", "dtype", "other"]
    (mark,) = test.pytestmark
    assert mark.args == ("op", ["Neg", "Abs"])
    test(op="Abs", dtype=np.float32, other=3)
    assert seen == [("Abs-f8:[1.0]", np.float32, 3)]
    for dtype, count in ((np.float32, 3), (np.float64, 4)):  # which has a row of its own
        seen.clear()
        with pytest.raises(pytest.fail.Exception) as failed:
            test(op="Neg", dtype=dtype, other=3)
        assert len(seen) == count
        text = str(failed.value)
        assert "Neg-f8:[1.0, 1.0]-bad\n" in text and "Neg-f8:[1.0]-bad\n" in text
        assert ("bad in double" in text) == (dtype is np.float64)
        assert "the check's own words" in text

"""docs/operators.md is what scripts/operators.py would write."""

from __future__ import annotations

import importlib.util

from checkout import ROOT

SCRIPT = ROOT / "scripts" / "operators.py"


def test_the_table_of_operators_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("operators", SCRIPT)
    assert spec is not None and spec.loader is not None
    operators = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(operators)
    wanted, found = operators.text().splitlines(), operators.FILE.read_text().splitlines()
    stale = [w for w in wanted if w not in found] + [f for f in found if f not in wanted]
    assert wanted == found, "run `make operators`: " + "\n".join(stale[:10])

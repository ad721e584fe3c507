"""The short form of tests/attack/ranks.py: faults of a process of several."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from steep_program import built

_spec = importlib.util.spec_from_file_location("ranks", ROOT / "tests" / "attack" / "ranks.py")
assert _spec and _spec.loader
ranks = importlib.util.module_from_spec(_spec)
sys.modules["ranks"] = ranks  # for its dataclass
_spec.loader.exec_module(ranks)

CASES = ranks.cases(len(ranks.KINDS) * len(ranks.MOMENTS), seed=1)[::2]

pytestmark = [
    pytest.mark.skipif(
        not Path(built("steep")).with_name("libsteep_comm_gloo.so").exists(),
        reason="gloo was not found when Steep was built (libgloo-dev)",
    ),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler for the library of faults"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_ends_all_and_loses_no_saved_step(tmp_path: Path, case: "ranks.Case") -> None:
    ranks.prepare(tmp_path)
    assert ranks.attack(built("steep"), tmp_path, case) == ""

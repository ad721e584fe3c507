"""Random modules agree with eager PyTorch over several calls, or are refused by a typed error.

Twelve in every run of the tests, 192 more by `make patterns`. scripts/modules.py tries as many
as wanted.
"""

import importlib.util

import pytest
from checkout import ROOT

pytest.importorskip("torch")

SCRIPT = ROOT / "scripts" / "modules.py"
spec = importlib.util.spec_from_file_location("modules", SCRIPT)
modules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(modules)
COUNT = 12
MORE = [pytest.param(first, marks=pytest.mark.patterns) for first in range(COUNT, 200, COUNT)]


@pytest.mark.parametrize("first", [0, *MORE])
def test_random_modules_differ_nowhere_in_silence(first):
    said = {seed: modules.verdict(modules.Case(seed)) for seed in range(first, first + COUNT)}
    assert {s: v for s, v in said.items() if v.startswith("differs")} == {}
    assert sum(v == "agrees" for v in said.values()) >= COUNT // 3

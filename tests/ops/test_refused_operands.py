"""Operands that a node does not take: a typed error, and never bytes that are not theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("refused_operands.py")


def told(pattern: int) -> list[str]:
    """The lines, with `pattern` in the bytes of all that is allocated and not yet written."""
    env = {**os.environ, "MALLOC_PERTURB_": str(pattern), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, SCRIPT], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-500:] + run.stderr[-2000:]
    return run.stdout.splitlines()


def test_operands_that_do_not_fit() -> None:
    lines, others = told(0x55), told(0xAA)
    assert len(lines) > 1000
    faults = [line for line in lines if "'raw " in line or "'InternalError" in line]
    assert faults == [], "an error that is not typed, or is ours"
    differ = [pair for pair in zip(lines, others, strict=True) if len(set(pair)) > 1]
    assert differ == [], "depends on bytes outside of the operands"

"""``torch.compile(backend="steep")``: a warning says once that the guards are PyTorch's own."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import torch, steep

for width in (3, 4):
    net = torch.compile(torch.nn.Linear(width, 2), backend="steep")
    for rows in (2, 5):
        net(torch.ones(rows, width)).sum().backward()
"""


def test_whose_guards_there_are_is_said_once():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stderr.count("changes that only ORTModule(model) notices") == 1
    assert "docs/wrappers.md" in run.stderr

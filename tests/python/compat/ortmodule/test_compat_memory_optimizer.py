"""ORTMODULE_MEMORY_OPT_LEVEL and _CONFIG: what they asked for is a limit of memory here."""

import json
from pathlib import Path
from typing import Any

import pytest

import steep

torch = pytest.importorskip("torch")

from steep.compat.ortmodule import memory_optimizer  # noqa: E402
from steep.compat.ortmodule.ort_module import ORTModule  # noqa: E402

LEVEL, CONFIG = "ORTMODULE_MEMORY_OPT_LEVEL", "ORTMODULE_MEMORY_OPT_CONFIG"


def trained() -> tuple[list[Any], int]:
    """Gradients of a deep module with dropout, and what its plan takes."""
    torch.manual_seed(0)
    parts = [p for _ in range(6) for p in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    module = ORTModule(torch.nn.Sequential(*parts, torch.nn.Dropout(0.5)))
    x = torch.randn(256, 64)
    module(x).square().mean().backward()
    (plan,) = module.plan()
    return [p.grad for p in module.parameters()], plan.run_bytes


@pytest.mark.parametrize("level", ["1", "2"])
def test_a_level_saves_memory_and_changes_no_bit(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, plain = trained()
    monkeypatch.setenv(LEVEL, level)
    found, planned = trained()
    assert planned < plain
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


@pytest.mark.parametrize(
    ("entries", "limit"),
    [
        ([], ""),
        (["BiasGelu+:0:-1"], ""),
        (["BiasGelu+:1:0"], ""),
        (["BiasGelu+:0:-1", "Softmax+Dropout+:1:-1"], "least"),
        (["LayerNormalization+:2:3"], "least"),
    ],
)
def test_entries(
    entries: list[str], limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.json"
    path.write_text(json.dumps(entries))
    monkeypatch.setenv(CONFIG, str(path))
    assert memory_optimizer.memory_limit() == limit
    if entries:  # as it was before 1.19
        monkeypatch.setenv(CONFIG, ",".join(entries))
        assert memory_optimizer.memory_limit() == limit


@pytest.mark.parametrize("entry", ["Gelu+", "Gelu+:3:1", "Gelu+:1", "Gelu+:1:-2", ":1:1", "G:1:x"])
def test_entries_that_do_not_exist(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.json"
    path.write_text(json.dumps([entry]))
    monkeypatch.setenv(CONFIG, str(path))
    with pytest.raises(steep.DataError, match=CONFIG) as caught:
        ORTModule(torch.nn.Linear(2, 2))
    assert caught.value.received == entry


@pytest.mark.parametrize("text", ["{}", "[1]", "no JSON"])
def test_files_that_are_no_list_of_entries(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.json"
    monkeypatch.setenv(CONFIG, str(path))
    with pytest.raises(steep.DataError, match=CONFIG):
        memory_optimizer.memory_limit()
    path.write_text(text)
    with pytest.raises(steep.DataError, match=CONFIG):
        memory_optimizer.memory_limit()


def test_a_level_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, "3")
    with pytest.raises(steep.DataError, match=LEVEL):
        ORTModule(torch.nn.Linear(2, 2))

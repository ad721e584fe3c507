"""What follows a capture is kept: under all that the graph consists of, and only what holds."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from steep import ModelError, ORTModule, OutOfMemoryError
from steep.graph.engine_graph import EngineGraph
from steep.lowering import cache, to_onnx


class Scaled(nn.Module):
    def __init__(self, factor: float, table: list[float]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.factor = factor
        self.table = torch.tensor(table)

    def forward(self, x):
        shift = torch.tensor([0.5, 1.5, -1.0, 2.0])
        return (self.layer(x) * self.factor + self.table + shift).tanh()


@pytest.fixture
def conversions(monkeypatch, tmp_path):
    """The graphs that the exporter was asked for."""
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path / "cache"))
    seen = []
    convert = to_onnx.to_onnx
    monkeypatch.setattr(to_onnx, "to_onnx", lambda g: seen.append(g) or convert(g))
    return seen


def agree(module: nn.Module, *sizes: tuple[int, ...]) -> None:
    torch._dynamo.reset()  # as in another process
    wrapped = ORTModule(module)
    for size in sizes:
        x = torch.randn(size, requires_grad=True)
        expected = module(x)
        expected.sum().backward()
        wanted = [x.grad.clone(), *(p.grad.clone() for p in module.parameters())]
        x.grad = None
        module.zero_grad()
        result = wrapped(x)
        torch.testing.assert_close(result, expected)
        result.sum().backward()
        for found, true in zip(
            [x.grad, *(p.grad for p in module.parameters())], wanted, strict=True
        ):
            torch.testing.assert_close(found, true)
        module.zero_grad()


def test_an_equal_module_finds_its_graph(conversions):
    agree(Scaled(2.0, [1, 2, 3, 4]), (3, 4), (5, 4), (6, 4))
    assert len(conversions) == 2  # of these extents, and of any
    agree(Scaled(2.0, [4, 3, 2, 1]), (3, 4), (7, 4))  # the table is a tensor that it is given
    assert len(conversions) == 2


def test_another_number_is_another_graph(conversions):
    agree(Scaled(2.0, [1, 2, 3, 4]), (3, 4))
    agree(Scaled(3.0, [1, 2, 3, 4]), (3, 4))
    assert len(conversions) == 2


def test_a_constant_is_part_of_the_graph(conversions):
    class Shifted(nn.Module):
        def __init__(self, shift):
            super().__init__()
            self.shift = shift
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(x) + torch.tensor(self.shift)

    agree(Shifted([1.0, 2.0]), (3, 2))
    agree(Shifted([1.0, 3.0]), (3, 2))
    assert len(conversions) == 2


def test_what_binds_an_extent_is_not_kept(conversions):
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.RNN(3, 3)

        def forward(self, x):
            return self.cells(x)[0]

    for _ in range(2):
        agree(Steps(), (5, 2, 3), (4, 2, 3), (6, 2, 3))


def test_what_is_no_model_is_made_anew(conversions, monkeypatch, caplog):
    agree(nn.Linear(2, 2), (3, 2))
    (entry,) = cache.folder().glob("*.entry")
    cache.store(entry.stem, b"")
    agree(nn.Linear(2, 2), (3, 2))
    assert len(conversions) == 2
    assert "not a model" in caplog.text


def test_what_the_engine_cannot_run_is_not_kept(conversions, monkeypatch, caplog):
    def refuse(*arguments, **options):
        raise RuntimeError("no plan")

    with monkeypatch.context() as patch:
        patch.setattr(EngineGraph, "__init__", refuse)
        with pytest.raises(ModelError):
            ORTModule(nn.Linear(2, 2))(torch.ones(3, 2))
    assert not [*cache.folder().glob("*.entry")]
    agree(nn.Linear(2, 2), (3, 2))
    assert len([*cache.folder().glob("*.entry")]) == 1
    assert "cannot be used" not in caplog.text


def test_a_memory_limit_is_kept_by_new_and_by_cached_graphs(conversions):
    for _ in range(2):
        torch._dynamo.reset()
        wrapped = ORTModule(nn.Sequential(nn.Linear(32, 64), nn.Tanh()), memory_limit=1000)
        with pytest.raises(OutOfMemoryError, match="No plan fits the memory limit"):
            wrapped(torch.ones(512, 32))


def test_a_process_whose_graphs_are_cached_does_not_import_the_exporter(conversions):
    program = """
import sys, torch, steep
steep.ORTModule(torch.nn.Linear(3, 5))(torch.ones(2, 3)).sum().backward()
print("onnxscript" in sys.modules)
"""
    torch._dynamo.reset()
    ORTModule(nn.Linear(3, 5))(torch.ones(2, 3))
    assert len(conversions) == 1
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"

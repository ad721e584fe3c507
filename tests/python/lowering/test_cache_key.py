"""All that a graph's translation reads, beside the graph, is part of its key in the cache."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkout import ROOT, SUPPORT
from torch import nn

from steep import ORTModule
from steep.lowering import cache, fingerprint


class Thirds(nn.Module):
    """Divides integers, whose quotients have the default dtype."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float32))

    def forward(self, counts):
        return (counts / 3).float() * self.weight


@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def fill():
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


@contextlib.contextmanager
def of_the_exporter():
    os.environ["TORCH_ONNX_ENABLE_DRAFT_EXPORT"] = "0"
    try:
        yield
    finally:
        del os.environ["TORCH_ONNX_ENABLE_DRAFT_EXPORT"]


CHANGES = {
    "default dtype": default_dtype,
    "default device": lambda: torch.device("meta"),
    "deterministic": deterministic,
    "fill": fill,
    "of the exporter": of_the_exporter,
}


def cached() -> bool:
    """Whether the graph came from the cache; its values and gradients are PyTorch's."""
    torch._dynamo.reset()  # as in another process
    module = Thirds()
    wrapped = ORTModule(module)
    counts = torch.tensor([1, 2, 5], device="cpu")
    expected, result = module(counts), wrapped(counts)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    wanted = torch.autograd.grad(expected.sum(), module.weight)
    found = torch.autograd.grad(result.sum(), module.weight)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    return wrapped.report().graphs[-1].cached


def under_changes() -> dict[str, bool]:
    """Whether the graph came from the cache, under each change but that of the device."""
    found = {}
    for name, change in CHANGES.items():
        if name != "default device":  # nothing runs on the device of no values
            with change():
                found[name] = cached()
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path / "cache"))


def test_every_setting_is_changed_here():
    assert set(CHANGES) == set(fingerprint.settings())


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_is_part_of_the_key(name):
    graph = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    before = fingerprint.fingerprint(graph, "")
    with CHANGES[name]():
        assert fingerprint.settings()[name] != ""
        assert fingerprint.fingerprint(graph, "") != before
    assert fingerprint.fingerprint(graph, "") == before


def test_a_changed_setting_is_a_miss_within_a_process():
    assert not cached()
    assert not any(under_changes().values())
    assert cached()


def test_a_changed_setting_is_a_miss_in_another_process():
    with default_dtype():
        assert not cached()
    script = "import test_cache_key as t; print(t.cached(), t.under_changes())"
    path = os.pathsep.join(map(str, (ROOT / "python", SUPPORT, Path(__file__).parent)))
    environment = {**os.environ, "PYTHONPATH": path}
    run = [sys.executable, "-c", script]
    said = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    others = {name: name == "default dtype" for name in CHANGES if name != "default device"}
    assert said.stdout.strip() == f"False {others}"


def test_every_file_of_the_package_is_part_of_the_key(tmp_path, monkeypatch):
    def key(text: str) -> str:
        (tmp_path / "part.py").write_text(text)
        return cache.versions.__wrapped__()

    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    assert key("1") != key("2")


def traced(function, *arguments):
    """A graph of fake values, as the translation is given."""
    with torch._subclasses.FakeTensorMode() as mode:
        given = [mode.from_tensor(a) for a in arguments]
        return torch.fx.experimental.proxy_tensor.make_fx(function)(*given)


def test_the_type_of_every_value_is_part_of_the_key():
    graph = traced(lambda x: x / 3 + 1, torch.ones(3))
    before = fingerprint.fingerprint(graph, "")
    (quotient,) = (n for n in graph.graph.nodes if n.target is torch.ops.aten.div.Tensor)
    quotient.meta["val"] = quotient.meta["val"].double()
    assert fingerprint.fingerprint(graph, "") != before


def test_what_others_decompose_stays_out(monkeypatch):
    graph = traced(lambda x: x.sinh(), torch.ones(3))
    fingerprint.fingerprint(graph, "")
    table = torch._decomp.decomposition_table
    monkeypatch.setitem(table, torch.ops.aten.sinh.default, lambda x: x)
    with pytest.raises(fingerprint.Undetermined):
        fingerprint.fingerprint(graph, "")

"""Patterns of PyTorch code by every front door: all is as in PyTorch.

Each pattern is called several times, with other extents, values or attributes, and must have run in
the engine at least in part. Results, gradients, parameters, buffers, arguments and who shares
memory with whom are compared.
"""

import pytest

torch = pytest.importorskip("torch")

import call_patterns  # noqa: E402
import everyday_patterns  # noqa: E402
import image_patterns  # noqa: E402
import module_patterns  # noqa: E402
import operator_patterns  # noqa: E402
from patterns import Pattern, compare_calls, compare_steps  # noqa: E402

import steep  # noqa: E402

MODULES = (everyday_patterns, operator_patterns, image_patterns, call_patterns, module_patterns)
TABLES = [module.PATTERNS for module in MODULES]
PATTERNS = {name: Pattern(*entry) for table in TABLES for name, entry in table.items()}

# by the other doors in every run of the tests; the rest of them with the matrix
ALWAYS = {
    *("rows", "lstm", "batch norm", "argument written", "views of results", "checkpoint"),
    *("cache written", "frozen and thawed", "tied modules", "CrossEntropyLoss"),
}


def by_other_doors(refused=()):
    return [
        pytest.param(name, marks=() if name in ALWAYS else pytest.mark.matrix)
        for name in PATTERNS
        if name not in refused
    ]


@pytest.fixture(autouse=True)
def start_anew():
    torch._dynamo.reset()


def test_names_are_unique():
    assert len(PATTERNS) == sum(len(table) for table in TABLES)


@pytest.mark.parametrize("name", PATTERNS)
def test_module(name):
    compare_calls(PATTERNS[name], lambda m: steep.ORTModule(m, exporter="dynamo", fallback="parts"))


@pytest.mark.parametrize("name", by_other_doors())
def test_backend(name):
    compare_calls(PATTERNS[name], lambda m: torch.compile(m, backend="steep"))


@pytest.mark.parametrize("name", by_other_doors())
def test_trainer(name):
    compare_steps(PATTERNS[name], steep.trainer)

"""``ORTModule(memory_limit=)``: calls that fit, with the bits of those without a limit."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import steep

torch = pytest.importorskip("torch")
nn = torch.nn


def layers() -> tuple[Any, Any]:
    """Products, tanh and dropout: random numbers that are drawn again."""
    parts = [p for _ in range(6) for p in (nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.5))]
    return nn.Sequential(*parts), (512, 64)


def attention() -> tuple[Any, Any]:
    """Attention with dropout, layer normalisations and skips."""
    parts = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2)]
    return nn.Sequential(*parts), (8, 32, 32)


def convolutions() -> tuple[Any, Any]:
    """Batch normalisations, whose running statistics forward overwrites."""
    parts: list[Any] = []
    for channels in (3, 8, 8, 8):
        parts += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*parts), (8, 3, 24, 24)


class Moving(nn.Module):
    """Writes a buffer that it has read, before backward."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.register_buffer("offset", torch.zeros(64))

    def forward(self, x: Any) -> Any:
        for part in self.parts:
            x = torch.tanh(part(x) + self.offset)
        self.offset.add_(1)
        return x


def moving() -> tuple[Any, Any]:
    return Moving(), (512, 64)


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "layers": layers,
    "attention": attention,
    "convolutions": convolutions,
    "moving": moving,
}


class Trained:
    """One call forward and backward."""

    def __init__(self, name: str, limit: str | int) -> None:
        torch.manual_seed(0)
        made, shape = MODELS[name]()
        self.module = steep.ORTModule(made, memory_limit=limit)
        x = torch.randn(shape).requires_grad_()
        y = self.module(x)
        y.square().mean().backward()
        tensors = [y, x.grad, *(p.grad for p in made.parameters()), *made.buffers()]
        self.bits = [t.detach().clone() for t in tensors]
        (captured,) = self.module._steep_captured.values()
        (graph,) = captured.graphs
        program = graph.engine_graph.program
        self.planned = program.plan_for(graph.types, graph.engine_graph.gradients).peak_bytes
        # of all programs, of which each has a plan
        self.peak, self.programs = program.peak_bytes, program.program_count


def bounds(name: str) -> tuple[int, int]:
    """Return the least that would do, and what a call takes without a limit."""
    with pytest.raises(steep.OutOfMemoryError, match="No plan fits the memory limit") as caught:
        Trained(name, 1)
    text = str(caught.value)
    limit, least, plain = re.findall(r"(\d+) bytes?\b", text)
    assert limit == "1" and text.count("byte") == 3
    return int(least), int(plain)


SLOW = ("attention", "convolutions")
NAMES = [pytest.param(n, marks=[pytest.mark.matrix] if n in SLOW else []) for n in MODELS]


@pytest.mark.parametrize("name", NAMES)
def test_every_limit_is_kept_and_changes_no_bit(name: str) -> None:
    least, plain = bounds(name)
    assert least < 0.9 * plain
    wanted = Trained(name, "")
    last = wanted.planned
    for part in (1.0, 0.5, 0.25, 0.0):
        limit = int(least + part * (plain - least))
        found = Trained(name, limit)
        assert all(torch.equal(a, b) for a, b in zip(wanted.bits, found.bits, strict=True))
        assert found.peak <= 1.02 * limit * found.programs
        assert found.planned <= limit
        assert found.planned <= last
        last = found.planned
    assert last < wanted.planned


def test_below_the_least_is_an_error() -> None:
    least, _ = bounds("layers")
    with pytest.raises(steep.OutOfMemoryError, match=rf"at least .*\b{least} bytes"):
        Trained("layers", least - 1)


@pytest.mark.parametrize("text", ["2 GB", "0", 0, -1, "-1", "8Q", "GiB", "1.5G", "2gib"])
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(steep.ModelError, match="memory limit cannot be read"):
        steep.ORTModule(nn.Linear(2, 2), memory_limit=text)


@pytest.mark.parametrize("what", [2.5, True, None, b"2G"])
def test_a_limit_is_text_or_a_number(what: Any) -> None:
    with pytest.raises(TypeError, match="memory_limit"):
        steep.ORTModule(nn.Linear(2, 2), memory_limit=what)


def test_a_limit_above_the_plan_changes_nothing() -> None:
    dumps = [Trained("layers", limit).module.dump() for limit in ("", "2GiB")]
    assert dumps[0] == dumps[1]


class PicksPositive(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[torch.nonzero(x, as_tuple=True)].sum()


def test_a_graph_in_segments_is_refused() -> None:
    module = steep.ORTModule(PicksPositive(), fallback=None, memory_limit="1GiB")
    with pytest.raises(steep.ProviderError, match="memory limit needs a graph"):
        module(torch.randn(4, 4).requires_grad_())


def test_the_report_says_what_each_graph_computes_again() -> None:
    least, plain = bounds("layers")
    (free,) = Trained("layers", "").module.memory_report()
    assert free.limit == 0 and free.planned.bytes == free.plain.bytes == plain
    assert not any(c.again for c in free.choices)
    assert free.plans[-1].bytes == least
    (limited,) = Trained("layers", least).module.memory_report()
    assert limited.limit == limited.planned.bytes == least
    again = [c for c in limited.choices if c.again]
    assert again and all(c.bytes > 0 and c.ms > 0 for c in again)
    assert [c.node for c in limited.choices] == [c.node for c in free.choices]


def test_the_least_is_a_limit_of_its_own() -> None:
    least, _ = bounds("layers")
    wanted, found = Trained("layers", ""), Trained("layers", "least")
    assert all(torch.equal(a, b) for a, b in zip(wanted.bits, found.bits, strict=True))
    (report,) = found.module.memory_report()
    assert report.planned.bytes == least


def test_the_least_of_a_graph_in_segments_is_as_without() -> None:
    x = torch.randn(4, 4).requires_grad_()
    module = steep.ORTModule(PicksPositive(), fallback=None, memory_limit="least")
    assert torch.allclose(module(x), PicksPositive()(x))
    with pytest.raises(steep.ProviderError, match="memory report needs a graph"):
        module.memory_report()

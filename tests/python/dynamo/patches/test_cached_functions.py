"""A function with a cache returns what it kept, whatever it read then."""

import functools

import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402

STATE = {"scale": 2.0, "calls": 0}


@functools.lru_cache
def scaled(k):
    return STATE["scale"] * k


@functools.cache
def table(n, dtype=torch.float32):
    return torch.arange(n, dtype=dtype) * STATE["scale"]


@functools.lru_cache
def counted(n):
    STATE["calls"] += 1
    return STATE["calls"] + 0 * n


@functools.lru_cache
def noise(n):
    return torch.randn(n)


@functools.lru_cache
def of_tensor(x):
    return STATE["scale"]


@functools.lru_cache
def sum_of(m):
    return float(m.weight.sum() + m.mean.sum())


@functools.lru_cache
def of_shape(shape):
    return torch.ones(shape[-1:]) * shape[0]


@functools.lru_cache(maxsize=1)
def kept_once(n):
    STATE["calls"] += 1
    return torch.ones(4) * n


@functools.lru_cache
def fails(n):
    raise ValueError(f"no table of {n}")


def recovered(m, x):
    try:
        return x * fails(3)
    except ValueError:
        return x * 7


def counts(m, x):
    m.calls += 1
    return x * m.table(4)


def after_a_write(m, x):
    m.mean.add_(1)
    return x * sum_of(m)


def after_a_write_to_a_view(m, x):
    m.mean[:2].add_(1)
    return x * sum_of(m)


def after_a_write_to_a_weight(m, x):
    with torch.no_grad():
        m.weight.mul_(2)
    return x * sum_of(m)


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.function, self.scale, self.calls = function, 1.0, 0

    def forward(self, x):
        return self.function(self, x * self.weight)

    @functools.lru_cache  # noqa: B019
    def table(self, n):
        return torch.arange(n) * self.scale + self.calls


def clear():
    for function in (
        scaled,
        table,
        counted,
        noise,
        of_tensor,
        sum_of,
        of_shape,
        kept_once,
        Net.table,
    ):
        function.cache_clear()


USES = {
    "number": lambda m, x: x * scaled(3),
    "tensor": lambda m, x: x * table(4, dtype=torch.float64),
    "of an extent": lambda m, x: x * scaled(x.shape[0]),
    "with effects": lambda m, x: x * counted(x.shape[0]),
    "random": lambda m, x: x + noise(4) + torch.rand(4),
    "method": lambda m, x: x * m.table(4),
    "method, after a write": counts,
    "of a tensor": lambda m, x: x * of_tensor(m.weight),
    "written": lambda m, x: x * table(4).add_(1),
    "that fails": recovered,
    "of a shape": lambda m, x: x * of_shape(x.shape),
    "of a tuple": lambda m, x: x * of_shape(tuple(x.shape)),
    "that keeps less": lambda m, x: x * kept_once(1) + kept_once(2),
    "after a write to a buffer": after_a_write,
    "after a write to a view": after_a_write_to_a_view,
    "after a write to a weight": after_a_write_to_a_weight,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_cache_is_that_of_eager_mode(use):
    results = []
    for wrap in (lambda m: m, ORTModule):
        clear()
        STATE.update(scale=2.0, calls=0)
        module = Net(use)
        net, found = wrap(module), []
        torch.manual_seed(0)
        for rows in (3, 4, 3, 5, 3):
            found.append(net(torch.ones(rows, 4)).tolist())
            STATE["scale"] += 1
            module.scale += 1
            if rows == 5:
                clear()
        found.append(torch.rand(2).tolist())
        results.append(found)
    assert results[1] == results[0]


def test_another_function_of_the_name(monkeypatch):
    clear()
    net = ORTModule(Net(USES["number"]))
    first = net(torch.ones(3, 4))
    monkeypatch.setitem(globals(), "scaled", functools.lru_cache(lambda k: -1.0 * k))
    assert torch.equal(net(torch.ones(3, 4)), -3 * torch.ones(3, 4))
    monkeypatch.undo()
    assert torch.equal(net(torch.ones(3, 4)), first)


@pytest.mark.parametrize("use", ["number", "tensor", "of an extent", "of a shape", "of a tuple"])
def test_whole_module(use):
    clear()
    net = ORTModule(Net(USES[use]), fallback=None)
    first = net(torch.ones(3, 4)).tolist()
    STATE["scale"] += 1
    assert net(torch.ones(3, 4)).tolist() == first
    clear()
    depends = use not in ("of a shape", "of a tuple")
    assert (net(torch.ones(3, 4)).tolist() != first) == depends
    x = torch.ones(5, 4)
    assert torch.equal(net(x), Net(USES[use])(x))


def test_a_call_does_not_evict_what_its_guards_ask_for(caplog):
    """Else a graph's guards would fail as soon as it is made, and each call would make another."""
    clear()
    net = ORTModule(Net(USES["that keeps less"]))
    graphs = []
    for _ in range(6):
        net(torch.ones(3, 4))
        graphs.append(len(net.report().graphs))
    assert graphs[2:] == [graphs[2]] * 4
    assert "This is a bug" not in caplog.text

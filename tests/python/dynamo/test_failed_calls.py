"""Errors of single calls that the user's loop catches: the calls after them are as in PyTorch."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from capture_patterns import WIDTH, Fn  # noqa: E402
from patterns import assert_same  # noqa: E402

import steep  # noqa: E402
from steep import ORTModule  # noqa: E402


def rows(n, width=WIDTH):
    return torch.randn(n, width)


def raises_on_nothing(m, x):
    if x.shape[0] == 0:
        raise ValueError("an empty batch")
    return m.layer(x)


def of_two_graphs(m, x):
    y = m.layer(x)
    if y.sum() > 1e9:  # PyTorch decides
        y = y * 2
    return m.layer(y.view(-1, WIDTH)) + x.view(-1, 2).sum(1)[0]


def in_a_loop(m, x):
    for _ in range(2):
        if x.sum() < 1e9:
            x = m.layer(x)
    return x


# what is captured, a bad call and a good one
CASES = {
    "width": (lambda m, x: m.layer(x), (rows(2, 5),), (rows(2),)),
    "rank": (lambda m, x: F.conv1d(x, m.layer.weight[:, :, None]), (rows(2),), (rows(6)[None],)),
    "dtype": (lambda m, x: m.layer(x), (rows(2).long(),), (rows(2),)),
    "precision": (lambda m, x: m.layer(x), (rows(2).double(),), (rows(2),)),
    "precisions": (
        lambda m, x, y: torch.mv(m.layer(x).T @ x, y),
        (rows(2), rows(WIDTH, 1)[:, 0].half()),
        (rows(2), rows(WIDTH, 1)[:, 0]),
    ),
    "subtraction of booleans": (
        lambda m, x, y: m.layer(x).sum(1) * (y - (y > 3)),
        (rows(2), torch.tensor([True, False])),
        (rows(2), torch.tensor([True, False])),
    ),
    "broadcast": (lambda m, x, y: m.layer(x) + y, (rows(2), rows(2, 5)), (rows(2), rows(2))),
    "view": (lambda m, x: m.layer(x).view(2, -1, 4), (rows(3),), (rows(4),)),
    "cat": (lambda m, x, y: torch.cat([m.layer(x), y]), (rows(2), rows(2, 5)), (rows(2), rows(1))),
    "dimension": (lambda m, x: m.layer(x).sum(x.dim() - 2).sum(1), (rows(1)[0],), (rows(2)[None],)),
    "index": (
        lambda m, x, i: m.layer(x)[i],
        (rows(2), torch.tensor([5])),
        (rows(2), torch.tensor([1])),
    ),
    "labels": (
        lambda m, x, t: F.cross_entropy(m.layer(x), t),
        (rows(2), torch.tensor([1, 99])),
        (rows(2), torch.tensor([1, 2])),
    ),
    "more labels": (
        lambda m, x, t: F.cross_entropy(m.layer(x), t),
        (rows(2), torch.tensor([1, 2, 3])),
        (rows(2), torch.tensor([1, 2])),
    ),
    "its own error": (raises_on_nothing, (rows(0),), (rows(2),)),
    "behind a branch": (of_two_graphs, (rows(2, 5),), (rows(2),)),
    "in a loop": (in_a_loop, (rows(2, 5),), (rows(2),)),
    "no tensor": (lambda m, x: m.layer(x), ("words",), (rows(2),)),
    "one too many": (lambda m, x: m.layer(x), (rows(2), rows(2)), (rows(2),)),
}


def outcome(m, args):
    m.zero_grad()
    try:
        y = m(*args)
    except Exception as e:  # whatever it is
        return e
    y.sum().backward()
    return [y.detach(), *(p.grad for p in m.parameters())]


# the others by `make patterns`
ALWAYS = {"precision", "precisions", "width", "labels", "behind a branch"}


def by_name():
    return [
        pytest.param(name, marks=() if name in ALWAYS else pytest.mark.patterns) for name in CASES
    ]


@pytest.mark.parametrize("name", by_name())
@pytest.mark.parametrize("first", ["bad", "good"])
def test_a_bad_call_is_of_no_consequence(name, first):
    forward, bad, good = CASES[name]
    torch_net = Fn(forward)
    net = ORTModule(copy.deepcopy(torch_net))
    calls = [bad, good, bad, good] if first == "bad" else [good, bad, good]
    for call in calls:
        found, expected = (outcome(m, call) for m in (net, torch_net))
        if isinstance(expected, Exception):
            assert isinstance(found, steep.DataError | steep.ShapeError | type(expected)), found
        else:
            assert not isinstance(found, Exception), found
            assert_same(found, expected)
    assert any(r.operators for r in net.report().graphs)


def test_what_only_the_tracer_fails_at_is_said_and_left_to_pytorch(monkeypatch, caplog):
    from torch._dynamo.variables import TensorVariable

    call = TensorVariable.call_method

    def failing(self, tx, name, *arguments):
        if name == "sinh":
            raise AssertionError("a fault of the tracer")
        return call(self, tx, name, *arguments)

    monkeypatch.setattr(TensorVariable, "call_method", failing)
    net = ORTModule(Fn(lambda m, x: m.layer(x).sinh()))
    for _ in range(3):
        net(rows(2))
    assert "a fault of the tracer" in caplog.text
    assert sum("a fault of the tracer" in text for text in net.report().breaks) == 1

"""Everyday modules captured by Dynamo: results, gradients, buffers and arguments are PyTorch's.

Each pattern is called several times, with other extents or values, and must have run in the engine
at least in part.
"""

import contextlib
import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import capture_patterns as on  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from capture_patterns import WIDTH, Fn, Pair, rows, sequences  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402

from steep import ModelError, ORTModule, capture  # noqa: E402


@pytest.fixture(autouse=True)
def start_anew():
    torch._dynamo.reset()


PATTERNS = {
    # extents
    "rows": (lambda: Fn(lambda m, x: torch.relu(m.layer(x))), rows(3, 5, 7, 1)),
    "scan": (lambda: Fn(on.scan), sequences(3, 5, 4)),
    "cells": (lambda: Fn(on.cells, cell=nn.LSTMCell(WIDTH, WIDTH)), sequences(3, 2)),
    "rnn": (
        lambda: Fn(lambda m, x: m.rnn(x)[0], rnn=nn.RNN(WIDTH, 4, batch_first=True)),
        sequences(5, 9, 2),
    ),
    "lstm": (
        lambda: Fn(lambda m, x: m.rnn(x), rnn=nn.LSTM(WIDTH, 4, batch_first=True)),
        sequences(5, 9),
    ),
    "gru": (
        lambda: Fn(lambda m, x: m.rnn(x)[1], rnn=nn.GRU(WIDTH, 4, batch_first=True)),
        sequences(5, 9),
    ),
    "size in arithmetic": (lambda: Fn(lambda m, x: m.layer(x) / x.shape[0]), rows(3, 5, 7)),
    "branch on size": (
        lambda: Fn(lambda m, x: m.layer(x) * (2 if x.shape[0] > 4 else 3)),
        rows(3, 5, 7),
    ),
    "arange": (
        lambda: Fn(lambda m, x: m.layer(x) + torch.arange(x.shape[0])[:, None]),
        rows(3, 5, 7),
    ),
    "view by size": (lambda: Fn(lambda m, x: m.layer(x).view(x.shape[0] * 2, -1)), rows(3, 5)),
    "causal": (lambda: Fn(lambda m, x: (m.layer(x) @ x.transpose(1, 2)).tril()), sequences(3, 5)),
    "unfold": (lambda: Fn(on.windows), rows(3, 4)),
    "no rows": (lambda: Fn(lambda m, x: m.layer(x).sum(1)), rows(3, 0, 2)),
    # decisions
    "early": (lambda: Fn(on.early), [(torch.full((2, WIDTH), v),) for v in (1.0, -1.0, 2.0, -3.0)]),
    "while": (lambda: Fn(on.halves), [(torch.full((2, WIDTH), v),) for v in (1.0, 9.0, 0.1)]),
    "float of a tensor": (lambda: Fn(on.python_float), rows(3, 3, 4)),
    "item": (lambda: Fn(on.item), rows(3, 3, 4)),
    "tolist": (lambda: Fn(on.in_order), rows(3, 3)),
    "any": (lambda: Fn(lambda m, x: m.layer(x) if x.isnan().any() else m.layer(x) * 2), rows(3, 3)),
    "optional argument": (
        lambda: Fn(on.optional),
        [
            (torch.randn(2, WIDTH),),
            (torch.randn(2, WIDTH), 2.0),
            (torch.randn(2, WIDTH), 3.0),
            (torch.randn(2, WIDTH), torch.randn(WIDTH)),
        ],
    ),
    "number argument": (
        lambda: Fn(lambda m, x, n: m.layer(x) * n),
        [(torch.randn(2, WIDTH), n) for n in (1, 2, 3, 4, 7)],
    ),
    "float argument": (
        lambda: Fn(lambda m, x, n: m.layer(x) * n + n),
        [(torch.randn(2, WIDTH), n) for n in (0.1, 0.2, 0.3, 0.4)],
    ),
    "flag": (
        lambda: Fn(lambda m, x, f: m.layer(x) if f else x * m.layer(x)),
        [(torch.randn(2, WIDTH), f) for f in (True, False, True)],
    ),
    "string": (
        lambda: Fn(lambda m, x, f: getattr(torch, f)(m.layer(x))),
        [(torch.randn(2, WIDTH), f) for f in ("tanh", "relu")],
    ),
    "try": (
        lambda: Fn(on.try_except),
        [(torch.randn(WIDTH, WIDTH),), (torch.randn(WIDTH, WIDTH),)],
    ),
    "experts": (
        lambda: Fn(
            on.experts, experts=nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(WIDTH))
        ),
        rows(5, 7),
    ),
    "nonzero": (lambda: Fn(lambda m, x: m.layer(x[x[:, 0] > 0])), rows(5, 7)),
    # in place, views, aliases
    "slice written": (lambda: Fn(on.in_place_slice), rows(3, 5)),
    "view written": (lambda: Fn(on.view_written), rows(3, 5)),
    "as_strided": (lambda: Fn(on.strided), rows(3, 5)),
    "argument written": (lambda: Fn(on.written_argument), rows(3, 5)),
    "argument filled": (lambda: Fn(lambda m, x: m.layer(x.clamp_(min=0))), rows(3, 5)),
    "views of arguments": (lambda: Fn(on.views_of_arguments), rows(3, 5)),
    "views of results": (lambda: Fn(on.views_of_results), rows(3, 5)),
    "argument returned": (lambda: Fn(lambda m, x: (x, m.layer(x), x)), rows(3, 5)),
    "parameter returned": (lambda: Fn(lambda m, x: (m.layer(x), m.layer.weight)), rows(3, 5)),
    "result twice": (lambda: Fn(lambda m, x: [m.layer(x)] * 2), rows(3)),
    "relu in place": (lambda: Fn(lambda m, x: F.relu_(m.layer(x)) * 2), rows(3, 5)),
    "scatter": (lambda: Fn(on.scatter), rows(3, 5)),
    "gather": (lambda: Fn(on.gathered), rows(3, 5)),
    "index put": (
        lambda: Fn(lambda m, x: m.layer(x).index_put_((torch.tensor([0]),), torch.ones(WIDTH))),
        rows(3, 5),
    ),
    "masked fill": (lambda: Fn(lambda m, x: m.layer(x).masked_fill_(x > 0, -1.0)), rows(3, 5)),
    "flip": (lambda: Fn(lambda m, x: m.layer(x).flip(0)), rows(3, 5)),
    "expand written": (
        lambda: Fn(lambda m, x: m.layer(x[:1]).expand(x.shape[0], -1).clone().add_(x)),
        rows(3, 5),
    ),
    "diagonal": (lambda: Fn(lambda m, x: m.layer(x).diagonal().sum()), rows(3, 5)),
    "diagonal written": (lambda: Fn(lambda m, x: m.layer(x).fill_diagonal_(1.0)), rows(3, 5)),
    # history
    "the gradient that comes in": (lambda: Fn(lambda m, x: x + 1), rows(3, 5)),
    "detach": (lambda: Fn(on.detached), rows(3, 5)),
    "no_grad": (lambda: Fn(on.no_grad_teacher), rows(3, 5)),
    "straight through": (lambda: Fn(on.straight_through), rows(3, 5)),
    "detached, then changed": (lambda: Fn(on.aliased_detach), rows(3, 5)),
    "data changed": (lambda: Fn(on.data_changed), rows(3)),
    "function of the user's": (
        lambda: Fn(lambda m, x: on.Square.apply(m.layer(x)) + m.layer(x)),
        rows(3, 5),
    ),
    "checkpoint": (lambda: Fn(on.checkpointed), rows(3, 5)),
    "hook on a tensor": (lambda: Fn(on.hooked), rows(3, 5)),
    # state
    "state kept": (lambda: Fn(on.keeps, h=torch.zeros(WIDTH)), rows(3, 5, 4)),
    "count kept": (lambda: Fn(on.counts, count=torch.zeros(())), rows(3, 5, 4)),
    "cache written": (lambda: Fn(on.buffer_cache, cache=torch.zeros(8, WIDTH)), rows(3, 5)),
    "batch norm": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH)),
        rows(4, 5, 6),
    ),
    "batch norm of images": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        [(torch.randn(2, 3, n, n),) for n in (6, 8)],
    ),
    "batch norm without statistics": (
        lambda: Fn(
            lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH, track_running_stats=False)
        ),
        rows(4, 5),
    ),
    "batch norm not affine": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH, affine=False)),
        rows(4, 5),
    ),
    "batch norm at rest": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH).eval()),
        rows(4, 5),
    ),
    "cumulative batch norm": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH, momentum=None)),
        rows(4, 5, 6),
    ),
    "instance norm": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.InstanceNorm1d(3)),
        [(torch.randn(2, 3, WIDTH),)] * 2,
    ),
    "spectral norm": (
        lambda: Fn(
            lambda m, x: m.normed(m.layer(x)),
            normed=parametrizations.spectral_norm(nn.Linear(WIDTH, 3)),
        ),
        rows(3, 5),
    ),
    "weight norm": (
        lambda: Fn(
            lambda m, x: m.normed(m.layer(x)),
            normed=parametrizations.weight_norm(nn.Linear(WIDTH, 3)),
        ),
        rows(3, 5),
    ),
    "pruned": (
        lambda: Fn(
            lambda m, x: m.cut(m.layer(x)),
            cut=prune.l1_unstructured(nn.Linear(WIDTH, 3), "weight", 0.5),
        ),
        rows(3, 5),
    ),
    # parts of models
    "embedding": (
        lambda: Fn(on.embedded, table=nn.Embedding(9, WIDTH, padding_idx=0)),
        [(torch.randint(0, 9, (2, n)),) for n in (3, 5)],
    ),
    "attention": (
        lambda: Fn(
            lambda m, x: m.attention(x, x, x)[0],
            attention=nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        ),
        sequences(3, 5),
    ),
    "encoder layer": (
        lambda: Fn(
            lambda m, x: m.encoder(x),
            encoder=nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.0, batch_first=True),
        ),
        sequences(3, 5),
    ),
    "masked attention": (
        lambda: Fn(on.masked),
        [(torch.randn(2, n, WIDTH), torch.rand(2, n, n) > 0.3) for n in (3, 5)],
    ),
    "sdpa": (
        lambda: Fn(
            lambda m, x: F.scaled_dot_product_attention(
                *[t[:, None] for t in (m.layer(x), x, x)], is_causal=True
            )
        ),
        sequences(3, 5),
    ),
    "rotary": (lambda: Fn(on.rotated), sequences(3, 5)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.MaxPool2d(2)),
        [(torch.randn(2, 3, n, n),) for n in (6, 8)],
    ),
    "cross entropy": (
        lambda: Fn(lambda m, x, t: F.cross_entropy(m.layer(x), t, label_smoothing=0.1)),
        [(torch.randn(n, WIDTH), torch.randint(0, WIDTH, (n,))) for n in (3, 5)],
    ),
    "loss of probabilities": (
        lambda: Fn(lambda m, x: F.cross_entropy(m.layer(x), x.softmax(1).detach())),
        rows(3, 5),
    ),
    "einsum": (
        lambda: Fn(lambda m, x: torch.einsum("bij,bkj->bik", m.layer(x), x)),
        sequences(3, 5),
    ),
    "interpolate": (
        lambda: Fn(lambda m, x: F.interpolate(m.layer(x), scale_factor=2.0)),
        sequences(3, 5),
    ),
    "layers in a dict": (
        lambda: Fn(
            on.dict_of_layers, layers=nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "b": nn.Tanh()})
        ),
        rows(3, 5),
    ),
    "generator": (
        lambda: Fn(on.generator, experts=nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(3))),
        rows(3, 5),
    ),
    "tied": (
        lambda: Fn(lambda m, x: F.linear(torch.tanh(m.layer(x)), m.layer.weight.t())),
        rows(3, 5),
    ),
    "constant": (
        lambda: Fn(lambda m, x: m.layer(x) * torch.tensor([1.0, 2, 3, 4, 5, 6])),
        rows(3, 5),
    ),
    "double": (lambda: Fn(on.to_double_and_back), rows(3, 5)),
    "normalization of doubles": (
        lambda: nn.Sequential(
            nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False)
        ).double(),
        [(torch.randn(n, WIDTH, dtype=torch.float64),) for n in (3, 5)],
    ),
    "eye and ones": (
        lambda: Fn(lambda m, x: m.layer(x) @ torch.eye(WIDTH) + torch.ones_like(x)),
        rows(3, 5),
    ),
    "where": (lambda: Fn(lambda m, x: torch.where(x > 0, m.layer(x), x * 2)), rows(3, 5)),
    "topk": (lambda: Fn(lambda m, x: m.layer(x).topk(2)), rows(3, 5)),
    "sort": (lambda: Fn(lambda m, x: m.layer(x).sort(1)), rows(3, 5)),
    "std": (lambda: Fn(lambda m, x: m.layer(x).std(0) + m.layer(x).var(1).sum()), rows(3, 5)),
    "norm": (
        lambda: Fn(lambda m, x: F.normalize(m.layer(x)) / torch.linalg.vector_norm(x)),
        rows(3, 5),
    ),
    "integers": (lambda: Fn(lambda m, x: (m.layer(x), x.argmax(1), (x > 0).sum())), rows(3, 5)),
    "random": (lambda: Fn(on.random_times_zero), rows(3, 5)),
    # forms of results
    "dict": (lambda: Fn(on.number_and_list), rows(3, 5)),
    "dataclass": (lambda: Fn(lambda m, x: Pair(m.layer(x), x * 2)), rows(3, 5)),
    "nothing": (lambda: Fn(lambda m, x: (m.layer(x), None, [])), rows(3, 5)),
    "keyword": (
        lambda: Fn(lambda m, x, y: m.layer(x) * y["a"] + y["b"][0]),
        [(torch.randn(2, WIDTH), {"a": torch.randn(WIDTH), "b": [torch.randn(2, 1)]})] * 2,
    ),
}

# Of these PyTorch runs an operation, between parts in the engine.
IN_PARTS = {"hook on a tensor", "diagonal written"}


def new():
    return nn.Parameter(torch.randn(WIDTH))


def gradients(net, inputs):
    leaves = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return [t.grad for t in leaves if t.is_floating_point()] + [p.grad for p in net.parameters()]


def run(net, args):
    """Result, gradients, arguments and buffers after a call and its backward pass."""
    net.zero_grad()
    torch.manual_seed(1)
    leaves = copy.deepcopy(args)
    for t in tree_leaves(leaves):
        if isinstance(t, torch.Tensor) and t.is_floating_point():
            t.requires_grad_()
    # what forward may write to is no leaf
    given = tree_map_only(torch.Tensor, lambda t: t.clone(), leaves)
    result = net(*given)
    found = vars(result) if isinstance(result, Pair) else result
    tensors = [t for t in tree_leaves(found) if isinstance(t, torch.Tensor)]
    others = [t for t in tree_leaves(found) if not isinstance(t, torch.Tensor)]
    total = sum(
        (t * torch.linspace(-1, 2, t.numel()).view(t.shape).to(t.dtype)).sum()
        for t in tensors
        if t.requires_grad
    )
    total.backward()
    buffers = [b.clone() for b in net.buffers()]
    after = [t.detach() for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
    needs = [t.requires_grad for t in tensors]
    made = gradients(net, leaves)
    memory = [t.data_ptr() for t in (*tensors, *made) if t is not None and t.numel()]
    shared = [memory.index(m) for m in memory]  # who is written with whom
    return tensors, [*others, *shared], needs, made, buffers, after


def assert_same(found, expected):
    assert [a is None for a in found] == [b is None for b in expected]
    largest = [
        float(b.detach().double().abs().max()) for b in expected if b is not None and b.numel()
    ]
    for a, b in zip(found, expected, strict=True):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * max(largest, default=0))


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern(name):
    make, calls = PATTERNS[name]
    torch.manual_seed(0)
    module = make()
    torch.manual_seed(0)
    net = ORTModule(make(), exporter="dynamo", fallback="parts")
    for args in calls:
        expected, found = run(module, args), run(net, args)
        assert found[1:3] == expected[1:3]
        for a, b in zip((found[0], *found[3:]), (expected[0], *expected[3:]), strict=True):
            assert_same(a, b)


@pytest.mark.parametrize("name", sorted(IN_PARTS))
def test_one_graph_is_asked_for(name):
    make, calls = PATTERNS[name]
    with pytest.raises(ModelError, match=r"test_capture\.py|capture_patterns\.py"):
        ORTModule(make(), fallback=None)(*calls[0])


def test_what_decides_on_values_is_no_one_graph():
    make, calls = PATTERNS["early"]
    with pytest.raises(ModelError, match="does not become one graph"):
        ORTModule(make(), fallback=None)(*calls[0])


def test_nothing_in_the_engine_is_an_error():
    net = ORTModule(Fn(lambda m, x: x.tolist()), exporter="dynamo", fallback="parts")
    with pytest.raises(ModelError, match="Nothing of the module Fn ran in the engine"):
        net(torch.ones(2, WIDTH))
    whole = ORTModule(Fn(lambda m, x: x.tolist()), exporter="dynamo", fallback="torch")
    assert whole(torch.ones(1, 2)) == [[1, 1]]
    assert whole.fallback_calls == 1


def test_too_many_graphs_are_said(monkeypatch):
    monkeypatch.setitem(capture.CONFIG, "recompile_limit", 3)
    net = ORTModule(Fn(lambda m, x, f: getattr(torch, f)(m.layer(x))), exporter="dynamo")
    x = torch.randn(2, WIDTH)
    for function in ("tanh", "relu", "sin"):
        net(x, function)
    with pytest.raises(ModelError, match="too many graphs"):
        net(x, "cos")
    assert torch.equal(net(x, "relu"), net(x, "relu"))


def test_modes_and_precisions_have_graphs_of_their_own():
    inner = Fn(lambda m, x: m.drop(m.layer(x)), drop=nn.Dropout(0.5))
    net = ORTModule(inner, exporter="dynamo")
    x = torch.randn(64, WIDTH)
    assert (net(x) == 0).any()
    net.eval()
    assert not (net(x) == 0).any()
    with torch.no_grad():
        assert not net(x).requires_grad
    with torch.inference_mode():
        assert net(x).is_inference() or not net(x).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype == inner(x).dtype == torch.bfloat16
    wide = net(x)
    assert wide.dtype == torch.float32
    net.precision = "bf16"
    assert not torch.equal(net(x), wide)


def test_a_frozen_parameter_gets_no_gradient():
    net = ORTModule(Fn(lambda m, x: m.layer(x)), exporter="dynamo")
    net(torch.randn(2, WIDTH)).sum().backward()
    net.zero_grad()
    net.layer.weight.requires_grad_(False)
    net(torch.randn(2, WIDTH)).sum().backward()
    assert net.layer.weight.grad is None
    assert net.layer.bias.grad is not None


def test_equal_gradients_may_be_changed_one_by_one():
    torch.manual_seed(0)
    module = Fn(lambda m, x: (m.layer(x) + m.a + m.b + m.c).pow(2), **{n: new() for n in "abc"})
    net = ORTModule(copy.deepcopy(module))
    x = torch.randn(3, WIDTH)
    for m in (module, net):
        m(x).sum().backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
    assert_same([p.grad for p in net.parameters()], [p.grad for p in module.parameters()])


def test_second_derivatives():
    net = ORTModule(Fn(lambda m, x: torch.tanh(m.layer(x))), exporter="dynamo").double()
    x = torch.randn(2, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, (x,))
    assert torch.autograd.gradgradcheck(net, (x,))


def test_threads_and_copies():
    module = Fn(lambda m, x: torch.tanh(m.layer(x)))
    net = ORTModule(module, exporter="dynamo")
    x = torch.randn(3, WIDTH)
    expected = module(x)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: net(x), range(32)):
            assert_same([found], [expected])
    for other in (
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(ORTModule(nn.Linear(2, 2), exporter="dynamo"))),
    ):
        assert other.state_dict().keys() == other.module.state_dict().keys()
    assert_same([copy.deepcopy(net)(x)], [expected])


def test_threads_capture_one_after_the_other(monkeypatch):
    inside, deepest = [], []

    @contextlib.contextmanager
    def kept_whole():
        inside.append(None)
        deepest.append(len(inside))
        time.sleep(0.05)
        yield
        inside.pop()

    monkeypatch.setattr(capture, "kept_whole", kept_whole)
    nets = [ORTModule(Fn(lambda m, x: torch.tanh(m.layer(x)))) for _ in range(4)]
    x = torch.randn(3, WIDTH)
    with ThreadPoolExecutor(4) as pool:
        for net, found in zip(nets, pool.map(lambda net: net(x), nets), strict=True):
            assert_same([found], [net.module(x)])
    assert set(deepest) == {1}


def test_backend_of_torch_compile():
    module = Fn(lambda m, x: torch.tanh(m.layer(x)))
    compiled = torch.compile(module, backend=capture.backend)
    for args in rows(3, 5):
        for a, b in zip(run(compiled, args)[0], run(module, args)[0], strict=True):
            assert_same([a], [b])


def test_an_export_within_a_capture():
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    net = ORTModule(nn.Sequential(ORTModule(inner, exporter="dynamo"), inner[0]), exporter="dynamo")
    x = torch.randn(2, WIDTH)
    assert_same([net(x)], [inner[0](inner(x))])


def test_numbers_of_a_list_may_change():
    module = Fn(
        lambda m, x: m.layer(x) * torch.tensor([[m.shift, 2.0, 3], [m.shift, 1, m.shift]])[0, 0]
    )
    module.shift = 0.5
    net = ORTModule(copy.deepcopy(module), exporter="dynamo")
    x = torch.randn(2, WIDTH)
    for value in (0.5, 1.5, -2.5, 7.0):
        module.shift = net.module.shift = value
        torch.testing.assert_close(net(x), module(x))
    assert len(net.export_reports) == 2

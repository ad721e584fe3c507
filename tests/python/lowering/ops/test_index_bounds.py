"""Indices out of range, and values without a result: refused as PyTorch refuses them."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from patterns import assert_same  # noqa: E402

import steep  # noqa: E402
from steep import ORTModule  # noqa: E402

ROWS, WIDTH = 4, 3


def wide(i):
    return i[:, None].expand(2, WIDTH)


# of a matrix, two indices and two rows
OPERATORS = {
    "embedding": lambda x, i, u: F.embedding(i, x),
    "embedding, padding": lambda x, i, u: F.embedding(i, x, padding_idx=0),
    "embedding, int32": lambda x, i, u: F.embedding(i.int(), x),
    "embedding_bag": lambda x, i, u: F.embedding_bag(i[None], x, mode="sum"),
    "embedding_bag, max": lambda x, i, u: F.embedding_bag(i[None], x, mode="max"),
    "embedding_bag, offsets": lambda x, i, u: F.embedding_bag(i, x, torch.tensor([0, 1])),
    "gather": lambda x, i, u: torch.gather(x, 0, i[:, None]),
    "gather, columns": lambda x, i, u: torch.gather(x.t(), 1, i[None]),
    "take_along_dim": lambda x, i, u: torch.take_along_dim(x, i[:, None], 0),
    "take": lambda x, i, u: torch.take(x, i),
    "index_select": lambda x, i, u: torch.index_select(x, 0, i),
    "index_select, int32": lambda x, i, u: x.index_select(0, i.int()),
    "rows": lambda x, i, u: x[i],
    "columns": lambda x, i, u: x.t()[:, i],
    "points": lambda x, i, u: torch.cat([x, x], 1)[i, i],
    "index_put": lambda x, i, u: torch.index_put(x, (i,), u),
    "index_put, added": lambda x, i, u: torch.index_put(x, (i,), u, True),
    "scatter": lambda x, i, u: torch.scatter(x, 0, wide(i), u),
    "scatter_": lambda x, i, u: (x * 1).scatter_(0, wide(i), u),
    "scatter, a number": lambda x, i, u: torch.scatter(x, 0, i[:, None], 2.0),
    "scatter_add": lambda x, i, u: torch.scatter_add(x, 0, wide(i), u),
    **{
        f"scatter_reduce, {kind}": lambda x, i, u, kind=kind: torch.scatter_reduce(
            x, 0, wide(i), u, kind
        )
        for kind in ("sum", "prod", "mean", "amax", "amin")
    },
    "index_add": lambda x, i, u: torch.index_add(x, 0, i, u),
    "index_add_": lambda x, i, u: (x * 1).index_add_(0, i, u, alpha=2),
    "index_copy": lambda x, i, u: torch.index_copy(x, 0, i, u),
    "index_fill": lambda x, i, u: torch.index_fill(x, 0, i, 2.0),
    "one_hot": lambda x, i, u: F.one_hot(i, 4).float() @ x,
    "cross_entropy": lambda x, i, u: F.cross_entropy(x[:2], i),
    "nll_loss": lambda x, i, u: F.nll_loss(x[:2], i),
    "cross_entropy, smoothed": lambda x, i, u: F.cross_entropy(x[:2], i, label_smoothing=0.1),
    "multi_margin_loss": lambda x, i, u: F.multi_margin_loss(x[:2], i),
    "max_unpool1d": lambda x, i, u: F.max_unpool1d(x[None, :2, :1], i[None, :, None], 2),
    "max_unpool2d": lambda x, i, u: F.max_unpool2d(
        x[None, :2, :1, None], i[None, :, None, None], 2
    ),
    "bincount": lambda x, i, u: torch.bincount(i, minlength=4) * x[:, 0],
    "repeat_interleave": lambda x, i, u: torch.repeat_interleave(x[:2], i, 0),
}


IDS = torch.tensor([1, 7])


class Of(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, i, u):
        return self.operator(x * self.weight, i, u)


def outcome(net, indices):
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    try:
        y = net(x, torch.tensor(indices), torch.randn(2, WIDTH))
        y.sum().backward()
    except (RuntimeError, IndexError, steep.Error) as e:
        return e
    return [y.detach(), x.grad]


# the others by `make patterns`
ALWAYS = {"embedding", "gather", "index_select", "scatter_add", "index_add", "rows", "bincount"}


def by_name():
    return [
        pytest.param(name, marks=() if name in ALWAYS else pytest.mark.patterns)
        for name in OPERATORS
    ]


@pytest.mark.parametrize("name", by_name())
def test_an_index_is_refused_as_in_pytorch(name):
    module = Of(OPERATORS[name])
    net = ORTModule(module)
    far = () if name in {"bincount", "repeat_interleave"} else (1 << 30,)  # how many there are
    for last in (1, -1, 2, -4, -5, 3, 4, -(1 << 30), *far):
        found, expected = (outcome(m, [0, last]) for m in (net, module))
        if isinstance(expected, Exception):
            assert isinstance(found, steep.ShapeError | type(expected)), (found, expected)
        else:
            assert not isinstance(found, Exception), found
            assert_same(found, expected)


def test_the_error_says_which_index_came():
    net = ORTModule(Of(OPERATORS["index_select"]))
    said = str(outcome(net, [0, -2]))
    assert "negative" in said and "[0, 4)" in said and "-2" in said


def test_a_trainer_refuses_it():
    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(5, 2)

        def forward(self, i):
            return self.words(i)

    model = Words()
    before = model.words.weight.detach().clone()
    trainer = steep.trainer(
        model, lambda y, _: y.square().sum(), torch.optim.SGD(model.parameters(), 0.1)
    )
    with pytest.raises(steep.DataError, match="negative"):
        trainer.step(torch.tensor([1, -1]), torch.zeros(()))
    assert torch.equal(model.words.weight, before)


def factor(x):
    return torch.linalg.cholesky(x @ x.t() - 9 * torch.eye(2))


ONES = torch.ones(2, 2)
# a function, what it is given, and what PyTorch raises
WITHOUT_RESULT = {
    "inverse": (torch.linalg.inv, (ONES,)),
    "solve": (lambda x: torch.linalg.solve(x, x[0]), (ONES,)),
    "cholesky": (factor, (ONES,)),
    "floor_divide": (lambda i, j: i // j, (IDS, IDS - IDS)),
    "in the middle": (lambda i, j: ((i + 1) // j + 3) * 2, (IDS, IDS - IDS)),
    "remainder": (lambda i, j: i % j, (IDS, IDS - IDS)),
    "fmod": (torch.fmod, (IDS, IDS - IDS)),
    "truncated": (lambda i, j: torch.div(i, j, rounding_mode="trunc"), (IDS, IDS - IDS)),
    "label": (lambda x, i: F.cross_entropy(x * 2, i), (ONES, IDS)),
    "label of log-probabilities": (lambda x, i: F.nll_loss(x * 2, i), (ONES, IDS)),
}


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


@pytest.mark.parametrize("name", WITHOUT_RESULT)
def test_what_has_no_result_raises_an_error_of_pytorch(name):
    function, given = WITHOUT_RESULT[name]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(*given)
    with pytest.raises(expected.type) as found:
        ORTModule(Applied(function))(*given)
    assert isinstance(found.value, steep.DataError)

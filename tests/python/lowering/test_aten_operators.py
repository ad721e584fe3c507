"""Operators that ONNX's exporter refuses or says otherwise: where each runs, and its gradients."""

import copy
import math
import random

import pytest
import torch
import torch.nn.functional as F
from compared_functions import WIDTH, Fn, calls, check
from torch import nn
from torch._decomp import register_decomposition
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn.utils import parametrizations

import steep
from steep import ORTModule


def square(y):
    """A well conditioned matrix for each row, [N, 2, 2]."""
    return y[:, :4].reshape(-1, 2, 2) + 3 * torch.eye(2, dtype=y.dtype)


def gamma(y):
    """An operator without a translation: the incomplete gamma function."""
    return torch.special.gammainc(torch.full_like(y, 1.5), y.abs() + 0.1)


# Each alone: what is refused runs in PyTorch, with parts of the engine's around it.
PARTS = {
    "exponential": lambda y, x: torch.linalg.matrix_exp(square(y)),
    "svdvals": lambda y, x: torch.linalg.svdvals(square(y)),
    "median along an axis": lambda y, x: torch.median(y, 1),
    "kthvalue": lambda y, x: torch.kthvalue(y, 2, 1),
    "histc": lambda y, x: y * torch.histc(x.detach(), WIDTH),
    "incomplete gamma": lambda y, x: gamma(y),
    "eigenvalues": lambda y, x: torch.linalg.eigvals(square(y)).real.square().sum(-1),
    "sums of complex numbers": lambda y, x: torch.view_as_real(torch.complex(y, x).cumsum(0)) * 2,
    "vmap that detaches": lambda y, x: torch.vmap(lambda row: row * row.detach().sum())(y) + y,
}


OFTEN = (
    "exponential",
    "median along an axis",
    "histc",
    "incomplete gamma",
    "eigenvalues",
)


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in PARTS]
)
def test_operators_in_parts(name):
    torch.manual_seed(0)
    rows = (4, 7) if name == "exponential" else (4,)
    check(Fn(PARTS[name]).double(), calls(torch.float64, *rows), "parts")


def test_an_operator_defined_by_others_once_graphs_were_made():
    check(Fn(lambda y, x: torch.sin(y)).double(), calls(torch.float64, 4), "engine")
    library = torch.library.Library("steep_tests", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    twice = torch.ops.steep_tests.twice.default
    register_decomposition(twice)(lambda x: x * 2)

    def function(y, x):
        with torch.no_grad():
            factor = twice(x)
        return factor * y

    check(Fn(function).double(), calls(torch.float64, 4), "engine")


def test_two_operators_in_parts():
    def function(y, x):
        power = torch.linalg.matrix_exp(square(y))  # Dynamo names operations after variables
        return power @ gamma(y)[:, :2, None] * 2

    torch.manual_seed(0)
    check(Fn(function).double(), calls(torch.float64, 4), "parts")


def test_regions_stay_whole_beside_an_operator_in_parts():
    def function(y, x):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            turned = torch.sin(x @ x.T) @ y
        y = gamma(y) * turned
        with torch.no_grad():
            scale = y.abs().amax()
        return gamma(y * 2) / scale

    def within(y, x):
        with torch.no_grad():
            scale = gamma(y).exp()
        return y * scale

    torch.manual_seed(0)
    check(Fn(function).double(), calls(torch.float64, 4, 7), "parts")
    check(Fn(within).double(), calls(torch.float64, 4, 7), "parts")


def grown(y, x):
    """What is written may be smaller than what it is written to."""
    z = torch.empty(x.shape)
    z.copy_(y[0])
    z[:, 1:3] = y[:, :1]
    return z.sum(), z * x


def batched(y, x):
    """Rows, columns and a scan, each by functions of one."""

    def joined(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    rows = torch.vmap(lambda row, other: torch.tanh(row) * other.sum() + row[:1])(y, x)
    columns = torch.vmap(lambda column: column - column.mean(), in_dims=1, out_dims=1)(y)
    pairs = y.sigmoid()[None, :4], x[None, :4]
    return rows, columns, associative_scan(joined, pairs, dim=1, combine_mode="generic")[1]


def batched_indices(y, x):
    """A vmap within another, and a tensor that is asked at its indices."""

    positive = x > 0

    def kept(i, j):
        return positive[i, j] & (i + j > 2)

    row = torch.vmap(kept, (None, 0))
    with TransformGetItemToIndex():
        mask = torch.vmap(row, (0, None))(torch.arange(x.shape[0]), torch.arange(WIDTH))
    return y.masked_fill(mask, 0.5)


def rotated(y, x):
    """As rotary embeddings do it, by complex numbers."""
    angles = torch.arange(y.shape[0])[:, None] * torch.tensor([1.0, 0.1, 0.01])
    turns = torch.polar(torch.ones_like(angles), angles)[None].unsqueeze(1).expand(2, -1, -1, -1)
    pairs = torch.view_as_complex(y.reshape(1, 1, -1, 3, 2))
    return torch.view_as_real(pairs * turns).flatten(3), torch.view_as_real(turns[0, :, -1])


ENGINE = {
    "vmap": batched,
    "vmap of indices": batched_indices,
    "copy that grows": grown,
    "complex rotations": rotated,
    "numbers less integers": lambda y, x: (
        y * (1.0 - (x > 0).long()),
        1 - x.argsort(1),
        y - 2.5 / (x.argsort(1) + 1),
        (1.0 - (x > 0).int()) * -1e4,
    ),
    "masked_select": lambda y, x: (torch.masked_select(y, x > 0), y.masked_select(x[0] > 0)),
    "linalg.norm": lambda y, x: (
        torch.linalg.norm(y),
        torch.linalg.norm(y, math.inf),
        torch.linalg.matrix_norm(y, 1),
        torch.linalg.vector_norm(y, 3, 0),
    ),
    "drawn order": lambda y, x: y[torch.randperm(y.shape[0])].square().sum(),
    "powers of a matrix": lambda y, x: torch.linalg.matrix_power(y[:, :2].T @ y[:, :2], 3),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if i < 4 else pytest.mark.slow) for i, n in enumerate(ENGINE)],
)
def test_operators_in_the_engine(name):
    torch.manual_seed(0)
    check(Fn(ENGINE[name]), calls(torch.float32, 4, 7), "engine")


@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: y.max() * y,
        lambda y, x: y + y[x > 9].min(),
        lambda y, x: y * (x * 8).long()[x > 9].max(),
        lambda y, x: y * (x > 9).max(),
        lambda y, x: y * (x > 9).argmax(1)[:, None],  # of booleans it raises, whatever the rows
    ],
)
def test_no_extreme_where_pytorch_has_none(function):
    torch.manual_seed(0)
    eager = Fn(function)
    wrapped = ORTModule(copy.deepcopy(eager))
    for rows in (4, 0, 3):
        x = torch.linspace(-1, 40, rows * WIDTH).reshape(rows, WIDTH)
        for given in (x, x * 0):  # of the latter none is chosen
            try:
                expected = eager(given)
            except RuntimeError:
                with pytest.raises((RuntimeError, steep.Error)):
                    wrapped(given)
            else:
                torch.testing.assert_close(wrapped(given), expected)


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.numbers = nn.Linear(WIDTH, WIDTH), random.Random(3)

    def forward(self, x):
        return self.layer(x) * self.numbers.random()


def test_what_python_draws():
    torch.manual_seed(0)
    check(Drawing(), calls(torch.float32, 4, 4, 7), "parts")


def experts(y, x):
    """A mixture of experts that sends rows by ``nonzero``: groups may be empty."""
    out = torch.zeros_like(y)
    chosen = y[:, :3].argmax(1)
    for e in range(3):
        (at,) = torch.nonzero(chosen == e, as_tuple=True)
        out = out.index_add(0, at, y[at] * (e + 1))
    return out


def test_groups_by_nonzero_may_be_empty():
    torch.manual_seed(0)
    check(Fn(experts), calls(torch.float32, 4, 2, 7), "engine")


def chosen_experts(y, x):
    """The same, by a loop over those that are chosen, which PyTorch runs: rows are added."""
    out = torch.zeros_like(y)
    rows = F.one_hot(y[:, :3].argmax(1), 3).T
    for e in rows.sum(1).nonzero():
        (at,) = torch.where(rows[e[0]])
        out.index_add_(0, at, y[at] * (e + 1))
    return out


def sorted_experts(y, x):
    """The same, by rows in the order of their experts."""
    chosen = y[:, :3].argmax(1)
    order = chosen.argsort(stable=True)
    parts = y[order].split(torch.bincount(chosen, minlength=3).tolist())
    z = torch.cat([part * (e + 1) for e, part in enumerate(parts)])
    return torch.zeros_like(z).index_copy(0, order, z)


@pytest.mark.parametrize("function", [chosen_experts, sorted_experts])
def test_experts_in_parts(function):
    torch.manual_seed(0)
    check(Fn(function), calls(torch.float32, 4, 2), "parts")


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, targets, lengths):
        scores = self.layer(x).log_softmax(-1)
        full = torch.full((x.shape[1],), x.shape[0], dtype=torch.int64)
        return F.ctc_loss(scores, targets, full, lengths)


def test_ctc_loss():
    torch.manual_seed(0)
    given = [
        (torch.randn(8, n, WIDTH), torch.randint(1, WIDTH, (n, 3)), torch.randint(1, 4, (n,)))
        for n in (2, 5)
    ]
    check(Scores(), given, "engine")


PARAMETRISED = {
    "spectral norm": (parametrizations.spectral_norm, "engine"),
    "weight norm": (parametrizations.weight_norm, "engine"),
    "orthogonal": (parametrizations.orthogonal, "parts"),
}


@pytest.mark.parametrize("name", PARAMETRISED)
def test_parametrised_weights(name):
    torch.manual_seed(0)
    how, where = PARAMETRISED[name]
    module = Fn(lambda y, x: torch.tanh(y))
    module.layer = how(module.layer)
    check(module, calls(torch.float32, 4, 4), where)


def test_an_operator_that_dynamo_cuts_out():
    check(Fn(lambda y, x: torch.cov(y) * 2).double(), calls(torch.float64, 4), "parts")

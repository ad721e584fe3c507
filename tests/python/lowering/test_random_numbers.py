"""Random numbers of a captured module are PyTorch's, and its generator goes on as in eager mode."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steep import ORTModule

DRAWS = {
    "rand": lambda x: torch.rand(x.shape),
    "rand of twice the rows": lambda x: torch.rand(2 * x.shape[0], 6)[: x.shape[0]],
    "rand_like": torch.rand_like,
    "rand_like of a view": lambda x: torch.rand_like(x.t()).t(),
    "randn": lambda x: torch.randn(x.shape, dtype=torch.float64).float(),
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(0, x.shape[0], (3, 1))[0],
    "randperm": lambda x: x[torch.randperm(x.shape[0])],
    "normal": lambda x: torch.normal(1.0, 2.0, x.shape),
    "normal_": lambda x: torch.zeros_like(x).normal_(),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 1),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "gumbel softmax": lambda x: F.gumbel_softmax(x, 0.7),
    "without gradients": torch.no_grad()(torch.rand_like),
    "sample": lambda x: torch.distributions.Normal(x, 1.0, validate_args=False).rsample(),
}


class Every(nn.Module):
    """Each, times a layer's result."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return [self.layer(x) * draw(x) for draw in DRAWS.values()]


def run(net, x, seed):
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    made = net(x)
    results = list(made) if isinstance(made, (list, tuple)) else [made]
    state = torch.get_rng_state()
    net.zero_grad()
    sum((r * torch.linspace(-1, 2, r.numel()).view(r.shape)).sum() for r in results).backward()
    return state, [*results, x.grad, *(p.grad for p in net.parameters())]


def check(module, ours, x, seed=7):
    before, after = run(module, x, seed), run(ours, x, seed)
    assert torch.equal(before[0], after[0]), "the state of the generator"
    for right, value in zip(before[1], after[1], strict=True):
        scale = float(right.abs().max())
        torch.testing.assert_close(value, right, rtol=1e-5, atol=1e-5 * scale)


def test_draws_are_pytorchs():
    module = Every()
    ours = ORTModule(copy.deepcopy(module), fallback=None)
    for seed, rows in enumerate((4, 7, 5)):
        check(module, ours, torch.randn(rows, 6), seed)


def test_draws_go_on_from_call_to_call():
    net = nn.Linear(6, 6)
    module = ORTModule(Of(lambda net, x: net(x) * torch.rand_like(x), net), fallback=None)
    x = torch.randn(4, 6)
    torch.manual_seed(3)
    made = [module(x) for _ in range(3)]
    torch.manual_seed(3)
    for y in made:
        torch.testing.assert_close(y, net(x) * torch.rand_like(x))


class Of(nn.Module):
    """A function of a layer and its argument."""

    def __init__(self, function, layer):
        super().__init__()
        self.layer = layer
        self.function = function

    def forward(self, x):
        return self.function(self.layer, x)


BY_VALUES = {
    "bernoulli": lambda net, x: net(x) * torch.bernoulli(torch.sigmoid(net(x).detach())),
    "multinomial": lambda net, x: net(x)[:, torch.multinomial(x[0].softmax(0).detach(), 3)],
    "rrelu": lambda net, x: F.rrelu(net(x), training=True),
    "generator": lambda net, x: net(x) * torch.randn(x.shape, generator=GENERATOR.manual_seed(1)),
}
GENERATOR = torch.Generator()


@pytest.mark.parametrize("name", BY_VALUES)
def test_draws_by_values_are_pytorchs(name):
    module = Of(BY_VALUES[name], nn.Linear(6, 6))
    ours = ORTModule(copy.deepcopy(module))
    for rows in (4, 7):
        check(module, ours, torch.randn(rows, 6))


def test_a_part_that_only_draws():
    def function(net, x):
        kept = torch.bernoulli(torch.full((6,), 0.5))
        places = torch.multinomial(torch.ones(6), 4)
        return net(x) * kept + torch.randint(0, 5, (6,)) + torch.rand(6) + places[0]

    module = Of(function, nn.Linear(6, 6))
    ours = ORTModule(copy.deepcopy(module))
    for rows in (4, 7):
        check(module, ours, torch.randn(rows, 6))


def test_draws_before_and_after_a_cut_are_in_order():
    def function(net, x):
        y = net(x) * torch.rand_like(x)
        y = y + torch.bernoulli(torch.sigmoid(y.detach()))
        return net(y) * torch.randn_like(y)

    module = Of(function, nn.Linear(6, 6))
    check(module, ORTModule(copy.deepcopy(module)), torch.randn(4, 6))

"""``nn.LSTM``, ``nn.GRU``, ``nn.RNN``: one graph serves all lengths, with PyTorch's gradients."""

import copy

import pytest
import torch
from torch import nn

from steep import ORTModule

LAYERS = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm, deep, both ways": lambda: nn.LSTM(
        3, 4, num_layers=2, bidirectional=True, batch_first=True, dtype=torch.float64
    ),
    "lstm without bias": lambda: nn.LSTM(3, 4, bias=False, batch_first=True),
    "lstm in evaluation": lambda: nn.LSTM(3, 4, num_layers=2, dropout=0.5).eval(),
    "gru": lambda: nn.GRU(3, 4, num_layers=2),
    "gru both ways": lambda: nn.GRU(3, 4, bidirectional=True, batch_first=True),
    "gru without bias": lambda: nn.GRU(3, 4, bias=False, dtype=torch.float64),
    "rnn": lambda: nn.RNN(3, 4, num_layers=2, batch_first=True),
    "rnn of relu": lambda: nn.RNN(3, 4, nonlinearity="relu", bidirectional=True),
}


class Every(nn.Module):
    """Each layer, of a sequence of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({name.replace(".", ""): f() for name, f in LAYERS.items()})

    def forward(self, *xs):
        return [
            f(x.to(f.weight_ih_l0.dtype)) for f, x in zip(self.layers.values(), xs, strict=True)
        ]


def run(net, *args):
    args = [a.clone().requires_grad_() for a in args]
    results = [r for r in torch.utils._pytree.tree_leaves(net(*args)) if r is not None]
    net.zero_grad()
    sum((r * torch.linspace(-1, 2, r.numel()).view(r.shape)).sum() for r in results).backward()
    named = {f"parameter {name}": p.grad for name, p in net.named_parameters()}
    named |= {f"argument {i}": a.grad for i, a in enumerate(args)}
    return named | {f"result {i}": r for i, r in enumerate(results)}


def check(module, ours, *args):
    expected, made = run(module, *args), run(ours, *args)
    assert len(expected) == len(made)
    for (name, right), value in zip(expected.items(), made.values(), strict=True):
        tolerance = 1e-11 if right.dtype == torch.float64 else 1e-5
        atol = tolerance * max(float(right.abs().max()), 1e-3)
        torch.testing.assert_close(
            value, right, rtol=tolerance, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_recurrent_layers_of_all_lengths_are_one_graph():
    torch.manual_seed(0)
    module = Every()
    ours = ORTModule(copy.deepcopy(module), fallback=None)
    for extents in ((5, 2, 3), (7, 4, 3), (3, 9, 3), (12, 6, 3)):
        check(module, ours, *torch.randn(len(LAYERS), *extents))
    # Dynamo holds an extent for fixed until it changes; the second graph is for all others
    assert str(ours.report()).startswith("Every: 2 graphs")


class Given(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 4, num_layers=2, bidirectional=True)

    def forward(self, x, h, c):
        return self.layer(x, (h, c))


def test_states_are_given():
    torch.manual_seed(0)
    module = Given()
    ours = ORTModule(copy.deepcopy(module), fallback=None)
    check(module, ours, torch.randn(5, 2, 3), *torch.randn(2, 4, 2, 4))
    check(module, ours, torch.randn(1, 3, 3), *torch.randn(2, 4, 3, 4))
    check(module, ours, torch.randn(6, 3), *torch.randn(2, 4, 4))  # no batch


def test_dropout_between_layers_drops():
    torch.manual_seed(0)
    module = nn.LSTM(3, 32, num_layers=2, dropout=0.5)
    ours = ORTModule(module, fallback=None)
    x = torch.randn(5, 2, 3)
    many = torch.stack([ours(x)[0].detach() for _ in range(60)])
    exact = torch.stack([module(x)[0].detach() for _ in range(60)])
    assert not torch.equal(many[0], many[1])
    torch.testing.assert_close(many.mean(0), exact.mean(0), rtol=0, atol=0.1)
    torch.testing.assert_close(many.std(0).mean(), exact.std(0).mean(), rtol=0.05, atol=0)


def test_a_projection_runs_in_pytorch():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 4, proj_size=2))
    ours = ORTModule(copy.deepcopy(module))
    check(module, ours, torch.randn(5, 2, 3))
    with pytest.raises(Exception, match="lstm"):
        ORTModule(module, fallback=None)(torch.randn(5, 2, 3))

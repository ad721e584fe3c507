"""A module of PyTorch beside an ORTModule of its copy."""

import copy

import pytest
import torch

from steep import ORTModule


class Net(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.dropout = torch.nn.Dropout(dropout)
        self.second = torch.nn.Linear(8, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.second(self.dropout(torch.relu(self.norm(self.first(x))))) * self.scale


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def pair(module, **options):
    return module, ORTModule(copy.deepcopy(module), **options)


def assert_close(a, b, rtol=1e-5):
    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-6)


def assert_same_gradients(a, b):
    assert [n for n, _ in a.named_parameters()] == [n for n, _ in b.named_parameters()]
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(
                q.grad, p.grad, rtol=0, atol=1e-4 * max(float(p.grad.abs().max()), 1e-6)
            )

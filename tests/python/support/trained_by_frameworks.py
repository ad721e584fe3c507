"""A small model, its data, and what frameworks are to leave in it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def loader():
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(24, n, generator=generator) for n in (6, 3))
    return DataLoader(TensorDataset(x, y), batch_size=4)


def optimizer_of(model, precision):
    """AdamW in float32. In bfloat16, SGD: gradients near zero have the one sign or the other."""
    if precision == "32":
        return torch.optim.AdamW(model.parameters(), 0.01, fused=True)
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def assert_close_state(actual, expected, precision):
    """In bfloat16 the two round in different places, by 8 bits."""
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if precision == "32" else {"rtol": 0, "atol": 5e-3}
    assert list(actual) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, **tolerance, msg=name)


def assert_same_state(actual, expected):
    states = actual.state_dict(), expected.state_dict()
    assert list(states[0]) == list(states[1])
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value, rtol=1e-5, atol=1e-6, msg=name)

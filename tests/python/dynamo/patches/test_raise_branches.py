"""Errors that forward raises depending on values leave the graph whole, and are raised.

PYTEST_DONT_REWRITE: an assertion is to be Python's own.
"""

import copy

import pytest
import torch
from compared_functions import Fn, calls, check
from torch import nn

import steep
from steep import ModelError, ORTModule

TOP, NAME = 3, "small"


def too_large(y, x):
    if x is not None and x.max() >= TOP:
        raise ValueError(f"at most {TOP:>2}, " + NAME)
    return y * 2


def not_positive(y, x):
    good = (x > -TOP).all()
    if good:
        y = y + 1
    else:
        raise FloatingPointError
    return y


def asserted(y, x):
    assert (x < TOP).all()
    assert not (x < -TOP).any(), "too small"
    return y * 3


def either(y, x):
    if (x > TOP).any() or y.isnan().any():
        raise ArithmeticError("either")
    return y.exp()


def message_of_a_function(y, x):
    if x.max() > TOP:
        raise ValueError(str(y.shape))
    return y * 2


def seen(y, x):
    try:
        if x.max() > TOP:
            raise ValueError("large")
    except ValueError:
        return y * 3
    return y * 2


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        try:
            return self.inner(x)
        except ValueError:
            return self.inner.layer(x) * 5


WHOLE = (too_large, not_positive, asserted, either)


@pytest.mark.parametrize("function", WHOLE)
def test_one_graph(function):
    torch.manual_seed(0)
    check(Fn(function), calls(torch.float32, 5, 7), "engine")


@pytest.mark.parametrize("function", [*WHOLE, message_of_a_function])
@pytest.mark.parametrize("value", [9.0, -9.0, float("nan")])
def test_the_same_error(function, value):
    fallback = "parts" if function is message_of_a_function else None
    module = Fn(function)
    net = ORTModule(module, fallback=fallback)
    net(torch.ones(2, 6))
    x = torch.full((2, 6), value)
    try:
        expected = module(x)
    except Exception as e:
        with pytest.raises(type(e)) as raised:
            net(x)
        assert raised.type is type(e) and str(raised.value) == str(e)
    else:
        torch.testing.assert_close(net(x), expected, equal_nan=True)


@pytest.mark.parametrize("module", [Fn(seen), Outer(Fn(too_large))])
def test_an_error_that_forward_catches(module):
    net = ORTModule(copy.deepcopy(module))
    for x in (torch.ones(2, 6), torch.full((2, 6), 9.0), torch.ones(2, 6)):
        torch.testing.assert_close(net(x), module(x))


def test_nothing_is_written_before():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.total = nn.Linear(6, 6), nn.Buffer(torch.zeros(()))

        def forward(self, x):
            if x.sum() > TOP:
                raise ValueError("large")
            self.total += x.sum()
            return self.layer(x)

    net = ORTModule(Counting(), fallback=None)
    net(torch.full((1, 6), 0.25))
    with pytest.raises(ValueError, match="large"):
        net(torch.ones(1, 6))
    assert net.total == 1.5


def test_what_was_written_before_stays():
    class Counting(nn.Module):
        def __init__(self, writes):
            super().__init__()
            self.writes, self.total, self.calls, self.seen = (
                writes,
                nn.Buffer(torch.zeros(2)),
                0,
                [],
            )
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x):
            if self.writes == "a buffer":
                self.total[0] += 1
            elif self.writes == "a number":
                self.calls += 1
            elif self.writes == "a list":
                self.seen.append(1)
            else:
                x.mul_(1.0)
                [].append(x)
            if x.sum() > TOP:
                raise ValueError("large")
            return x * self.weight

    for writes in ("a buffer", "a number", "a list", "an argument"):
        states = []
        for wrap in (lambda m: m, ORTModule):
            net = Counting(writes)
            run, x = wrap(net), torch.full((2, 6), 9.0)
            run(torch.zeros(2, 6))
            with pytest.raises(ValueError, match="large"):
                run(x)
            states.append((net.total.tolist(), net.calls, net.seen, x._version))
        assert states[0] == states[1], writes


def test_a_step_cannot_be_taken_back():
    module = Fn(too_large)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    trainer = steep.trainer(module, nn.MSELoss(), optimizer)
    with pytest.raises(ModelError, match="raises an error that depends on values"):
        trainer.step(torch.ones(2, 6), torch.ones(2, 6))

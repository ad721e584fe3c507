"""Fifty calls of modules whose Python state changes at each: PyTorch's values, and few graphs."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, deque

import pytest
import torch
from torch import nn

from steep import ModelError, ORTModule
from steep.dynamo import recompiles
from steep.patching.torch_versions import RELEASE
from steep.torch_internals.dynamo import VariableTracker

CALLS = 50
GLOBAL = 0
LISTED = [0]


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.step, self.rate, self.average = 0, 1.0, 0.0
        self.history, self.state, self.name = [], {"n": 0, "r": 1.0}, ""
        self.inner = nn.Linear(3, 3)
        self.recent, self.order = deque(maxlen=3), OrderedDict(a=1, b=2, c=3)
        self.function = function

    def forward(self, x, *arguments):
        return self.function(self, x * self.weight, *arguments)


def counted(function):
    """Of the number of calls so far, which the module counts."""

    def forward(m, y):
        m.step += 1
        return function(m, y, m.step)

    return forward


def multiplied(m, y):
    m.rate = m.rate * 0.99
    return y * m.rate


def running(m, y):
    m.average = 0.9 * m.average + 0.1 * y.mean().item()
    return y - m.average


def history(m, y):
    m.history.append(y.detach())
    return y + torch.stack(m.history).mean()


def lengths(m, y):
    m.history.append(1.0)
    return y * len(m.history)


def held(m, y):
    m.state["n"] += 1
    m.state["r"] *= 0.9
    return y * m.state["n"] * m.state["r"]


def named(m, y, step):
    m.name = f"{step:4d} {step / 8:.2f}"
    return y * float(m.name.split()[1])


def warmed(m, y, step):
    return y * 2 if step > 10 else y


def alternating(m, y, step):
    return y * 2 if step % 5 == 0 else y


def annealed(m, y, step):
    scale = math.exp(-step / 20)
    return y * scale if scale > 0.5 else y - scale


def rate_of_dropout(m, y, step):
    return nn.functional.dropout(y, float(step > 20), training=True)


def tempered(m, y, step):
    return torch.log_softmax(y / max(0.5, 1 - step / 60), 0)


def filled(m, y, step):
    ones = torch.full_like(y, step / 9) * y.new_full((3,), step) * torch.full((3,), step * 0.5)
    return y * ones + torch.full((3,), step) + torch.full((3,), step, dtype=torch.float64).float()


def scaled(m, y, step):
    total = torch.add(y, m.weight, alpha=step) - y.sub(m.weight, alpha=step * 0.1)
    total = total.clone().add_(y, alpha=1 / step)
    return torch.addcmul(total, y, y, value=step / 7) + total.addcdiv(y, y.abs() + 1, value=step)


def large(m, y, step):
    return y * ((2**40 + step) % 1000) + (10**15 + step - 10**15)


def cut(m, y, step):
    return y[step % 2 :].sum()


def recent(m, y):
    m.recent.append(y.detach())
    return m.inner(y) * torch.stack([*m.recent]).sum(0)


def moved(m, y):
    m.order.move_to_end(next(iter(m.order)))
    return y * [*m.order.values()][-1]


STATE = {
    "int": (counted(lambda m, y, n: y * n), 2),
    "quotient": (counted(lambda m, y, n: y * (n / 100)), 2),
    "min": (counted(lambda m, y, n: y * min(1.0, n / 20)), 2),
    "max": (counted(lambda m, y, n: y * max(0.1, 1 - n / 30)), 2),
    "exp": (counted(lambda m, y, n: y * math.exp(-n / 50)), 2),
    "log": (counted(lambda m, y, n: y * math.log(n) + math.log(n + 1, 3)), 3),
    "cos": (counted(lambda m, y, n: y * (1 + math.cos(math.pi * n / 50)) / math.sqrt(n)), 2),
    "pow": (counted(lambda m, y, n: y * (1 - 0.9**n) * math.pow(0.99, n)), 2),
    "log1p": (counted(lambda m, y, n: y * math.log1p(n)), 6),
    "rounding": (counted(lambda m, y, n: y * round(n / 7, 2) + n // 3 + int(n / 4)), 2),
    "floor": (counted(lambda m, y, n: y * math.floor(n / 7) + math.fabs(n - 9) + abs(9 - n)), 2),
    "tensor of it": (counted(lambda m, y, n: y * torch.tensor(n / 10.0)), 2),
    "clamp": (counted(lambda m, y, n: y.clamp(min=0.01 * n)), 2),
    "large": (counted(large), 2),
    "filled with it": (counted(filled), 2),
    "factor of a sum": (counted(scaled), 2),
    "slope": (counted(lambda m, y, n: nn.functional.leaky_relu(y, n / 99)), 2),
    "temperature": (counted(tempered), 2),
    "warm-up": (counted(warmed), 3),
    "every fifth": (counted(alternating), 3),
    "annealed": (counted(annealed), 3),
    "dropout": (counted(rate_of_dropout), 3),
    "cut": (counted(cut), 4),
    "float": (multiplied, 2),
    "item": (running, 6),
    "dict": (held, 2),
    "global": (lambda m, y: y * GLOBAL, 2),
    "global list": (lambda m, y: y * LISTED[0], 2),
    "order of keys": (moved, 4),
}

# What no input can be: what holds it, and what that calls, become some graphs each.
LEFT = {
    "name": counted(named),
    "list of tensors": history,
    "list": lengths,
    "deque": recent,
}

ARGUMENTS = {
    "float": (lambda m, y, t: y / t, lambda k: (1.01 - k / 50,), 2),
    "max": (lambda m, y, t: y * max(t, 0.1), lambda k: (1 - k / 25,), 2),
    "exp": (lambda m, y, t: y * math.exp(-t), lambda k: (k / 50,), 2),
    "int": (lambda m, y, n: y * n + n, lambda k: (k * 3,), 3),
    "lengths": (
        lambda m, y, sizes: (torch.arange(3) < torch.tensor(sizes)[:, None]) * y,
        lambda k: ([1 + (7 * k + i) % 3 for i in range(2 + k % 3)],),
        5,
    ),
    "keyword": (lambda m, y, d: y * d["a"], lambda k: ({"a": k / 9},), 2),
}


def compare(function, most, arguments=lambda k: ()):
    torch.manual_seed(0)
    module = Net(function)
    wrapped = ORTModule(copy.deepcopy(module))
    for k in range(CALLS):
        globals()["GLOBAL"] = LISTED[0] = k
        given = torch.randn(3)
        results = []
        for net in (module, wrapped):
            x = given.clone().requires_grad_()
            y = net(x, *arguments(k))
            y.sum().backward()
            results.append((y, x.grad, net.weight.grad))
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5, msg=f"call {k}")
    for name in ("step", "rate", "state", "name", "recent", "order"):
        assert repr(getattr(wrapped.module, name)) == repr(getattr(module, name)), name
    assert wrapped.module.average == pytest.approx(module.average, rel=1e-5)
    assert len(module.history) == len(wrapped.module.history)
    assert len(wrapped.report().graphs) <= most
    assert wrapped.fallback_calls == 0


@pytest.mark.parametrize("name", STATE)
def test_fifty_calls(name):
    compare(*STATE[name])


@pytest.mark.parametrize("name", ARGUMENTS)
def test_fifty_calls_with_another_argument(name):
    function, arguments, most = ARGUMENTS[name]
    compare(function, most, arguments)


@pytest.mark.parametrize("name", LEFT)
def test_fifty_calls_of_what_is_left_to_pytorch(name, monkeypatch):
    monkeypatch.setattr(recompiles, "MOST_FOR_A_NUMBER", 3)
    compare(LEFT[name], 9 if RELEASE >= (2, 14) else 8)


def test_numbers_are_inputs_beside_an_operation_that_pytorch_runs():
    def function(m, y):
        m.step += 1
        y = torch.special.zeta(y.detach().abs() * (m.step / 7) + 2, torch.ones(())) + y
        return y * m.step + max(0.1, 1 - m.step / 5)

    compare(function, 2)


def test_what_changes_is_said_once_with_its_line_and_a_remedy(caplog, monkeypatch):
    monkeypatch.setattr(recompiles, "MOST_FOR_A_NUMBER", 4)
    net = ORTModule(Net(history))
    for _ in range(11):
        net(torch.ones(3))
    again = [m for m in caplog.messages if "captured again and again" in m]
    left = [m for m in caplog.messages if "where no graph of it fits" in m]
    # of the module's forward, and then of what that calls
    assert len(again) == len(left) == 2
    line = history.__code__.co_firstlineno + 1
    for said in (*again, *left):
        assert "history" in said
        assert f"{__file__}:{line}" in said
        assert "register_buffer" in said


def test_where_nothing_is_left_to_pytorch_it_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setattr(recompiles, "MOST_FOR_A_NUMBER", 3)
    net = ORTModule(Net(lengths), fallback=None)
    with pytest.raises(ModelError, match="too many graphs") as raised:
        for _ in range(recompiles.MOST_FOR_A_NUMBER + 2):
            net(torch.ones(3))
    assert "history" in str(raised.value) and 'fallback="parts"' in str(raised.value)


def test_another_fallback_runs_such_calls_in_pytorch(monkeypatch):
    monkeypatch.setattr(recompiles, "MOST_FOR_A_NUMBER", 3)
    net = ORTModule(Net(lengths), fallback="torch")
    for k in range(1, 9):
        assert torch.equal(net(torch.ones(3)), k * net.weight)
    assert 0 < net.fallback_calls < 8


def test_what_a_function_calls_is_still_captured_where_its_own_graphs_are_too_many(monkeypatch):
    monkeypatch.setattr(recompiles, "MOST_FOR_A_NUMBER", 3)

    def outer(m, y):
        m.history.append(1.0)
        return m.inner(y) * len(m.history)

    module = Net(outer)
    module.inner = Net(lambda m, y: y.tanh() + y)
    net = ORTModule(module)
    for k in range(1, 9):
        expected = module.inner(torch.ones(3) * module.weight) * k
        torch.testing.assert_close(net(torch.ones(3)), expected)
    line = module.inner.function.__code__.co_firstlineno
    assert any(g.place.endswith(f":{line}") or g.operators == 3 for g in net.report().graphs)


def test_modules_of_one_class_do_not_count_together():
    # not by monkeypatch, which deletes what a module has by __getattr__
    with torch._dynamo.config.patch(accumulated_recompile_limit=3, recompile_limit=2):
        kept = [ORTModule(Net(STATE["int"][0])) for _ in range(4)]
        for net in kept:
            net(torch.ones(3))
            assert torch.equal(net(torch.ones(3)), 2 * net.weight)
        for _ in range(3):  # deleted ones, too
            ORTModule(Net(STATE["int"][0]))(torch.ones(3))
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            for net in kept:
                net(torch.ones(3))
        assert torch._dynamo.config.accumulated_recompile_limit == 3


def test_a_capture_leaves_no_classes_to_dynamo():
    # Dynamo keeps every class of its variables for ever, with all that the class refers to
    known = type(VariableTracker).all_subclasses
    ORTModule(Net(STATE["int"][0]))(torch.ones(3))
    before = len(known)
    for _ in range(2):
        ORTModule(Net(STATE["int"][0]))(torch.ones(3))
    assert len(known) == before

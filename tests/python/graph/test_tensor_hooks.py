"""A hook on a tensor that forward makes is for the gradient by all uses, those before it too."""

import copy

import pytest

torch = pytest.importorskip("torch")

from steep import ModelError, ORTModule  # noqa: E402


def some_before(net, x):
    y = net.first(x)
    z = y * y
    y.register_hook(lambda g: g.clamp(max=0.1))
    return z + y.sin()


def all_before(net, x):
    y = net.first(x)
    z = y * net.second(x)
    y.register_hook(lambda g: 3.14 * g)
    return z


def a_result(net, x):
    y = net.first(x)
    z = y * 3
    y.register_hook(lambda g: g * 2)
    return y + z.detach(), y, z


def one_of_several(net, x):
    a, b = net.first(x).split([1, 2], 1)
    z = a * b
    b.register_hook(lambda g: 3.14 * g)
    return z


def by_a_later_value(net, x):
    y = net.first(x)
    z = y.sin()
    c = z.sum().detach()
    y.register_hook(lambda g: g * c)
    return z


def twice(net, x):
    y = net.first(x)
    z = y * y
    y.register_hook(lambda g: g * 2)
    w = z * y
    z.register_hook(lambda g: g + 1)
    return w + z


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = (
            torch.nn.Linear(3, 3),
            torch.nn.Linear(3, 3),
            function,
        )

    def forward(self, x):
        return self.function(self, x)


@pytest.mark.parametrize(
    "function", [some_before, all_before, a_result, one_of_several, by_a_later_value, twice]
)
def test_a_hook_sees_all_uses(function):
    torch.manual_seed(0)
    net = Net(function)
    ours, gradients = ORTModule(copy.deepcopy(net)), []
    for module in (net, ours):
        x = torch.linspace(-1, 2, 6).view(2, 3).requires_grad_()
        result = module(x)
        sum(t.sum() for t in (result if isinstance(result, tuple) else [result])).backward()
        gradients.append([x.grad, *(p.grad for p in module.parameters())])
    torch.testing.assert_close(*gradients)
    assert any(r.operators for r in ours.report().graphs)


def seen_after(net, x):
    y = net.first(x)
    z = y.sin()
    y.register_hook(lambda g: setattr(net, "seen", g))
    return z + y


def seen_between(net, x):
    y = net.first(x)
    double = y * 2
    y.register_hook(net.see)
    return double.sin() + y


def seen_before(net, x):
    y = net.first(x)
    y.register_hook(net.see)
    return y.sin() + y


def watch(net, y):
    y.register_hook(net.see)
    return y * 3


def seen_by_a_helper(net, x):
    y = net.first(x)
    return y.sin() + watch(net, y)


def retained(net, x):
    y = net.first(x)
    z = y.sin()
    y.retain_grad()
    net.kept = y
    return z + y


def removed(net, x):
    y = net.first(x)
    handle = y.register_hook(lambda g: g * 2)
    z = y.sin()
    handle.remove()
    return z * y


class Seeing(Net):
    def see(self, g):
        self.seen = g


@pytest.mark.parametrize(
    "function", [seen_after, seen_between, seen_before, seen_by_a_helper, retained, removed]
)
def test_what_a_hook_keeps_is_the_gradient_by_all_uses(function):
    torch.manual_seed(0)
    net = Seeing(function)
    ours, found = ORTModule(copy.deepcopy(net)), []
    for module, inner in ((net, net), (ours, ours.module)):
        for rows in (2, 3, 2):
            module(torch.linspace(-1, 2, 3 * rows).view(rows, 3)).sum().backward()
            seen = [inner.kept.grad] if function is retained else [getattr(inner, "seen", None)]
            found.append([*seen, *(p.grad.clone() for p in module.first.parameters())])
    for value, right in zip(found[3:], found[:3], strict=True):
        assert (value[0] is None) is (function is removed)
        torch.testing.assert_close(value[value[0] is None :], right[right[0] is None :])
    assert any(r.operators for r in ours.report().graphs)


class Pair(torch.nn.Module):
    """Two results, the second of which may be computed from the first."""

    def __init__(self, second):
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.second = second

    def forward(self, x):
        y = self.first(x)
        return y, self.second(y, x)


def hooked(y):
    y.register_hook(lambda g: None)


@pytest.mark.parametrize("wrap", [ORTModule, lambda m: torch.compile(m, backend="steep")])
@pytest.mark.parametrize("watch", [hooked, torch.Tensor.retain_grad])
def test_a_late_hook_that_would_see_a_part_is_refused(wrap, watch):
    torch._dynamo.reset()
    net = wrap(Pair(lambda y, x: y.sin()))
    for alive in (True, False):
        y, z = net(torch.ones(2, 3))
        watch(y)
        if not alive and watch is hooked:
            del y
        with pytest.raises(ModelError, match="see only a part of the gradient"):
            z.sum().backward()
    y, _ = net(torch.ones(2, 3))
    watch(y)
    y.sum().backward()  # by which the other has no gradient


SECONDS = {
    "of the argument": lambda y, x: x.sin() * 2,
    "of what is detached": lambda y, x: y.detach() * x.sum(),
    "of what is rounded": lambda y, x: (y > 0) * x.sum(),
}


@pytest.mark.parametrize("name", SECONDS)
def test_a_late_hook_that_sees_all_is_called(name):
    torch.manual_seed(0)
    net = Pair(SECONDS[name])
    found = []
    for module in (net, ORTModule(copy.deepcopy(net))):
        x = torch.linspace(-1, 2, 6).view(2, 3).requires_grad_()
        y, z = module(x)
        y.register_hook(lambda g: g * 2)
        z.register_hook(lambda g: g * 3)
        y.retain_grad()
        (y * 5 + z.sum()).sum().backward()
        found.append([y.grad, x.grad, *(p.grad for p in module.parameters())])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("second", SECONDS)
def test_late_hooks_are_called_as_those_of_eager(second):
    """Not where a result has no gradient; of the result that is computed last first."""
    net, found = Pair(SECONDS[second]), []
    for module in (net, ORTModule(copy.deepcopy(net))):
        for wanted in ((0,), (1,), (0, 1)):
            calls = []
            results = module(torch.linspace(-1, 2, 6).view(2, 3).requires_grad_())
            for k in (0, 1, 0):
                if results[k].requires_grad:
                    results[k].register_hook(lambda g, k=k, calls=calls: calls.append((k, g.sum())))
                    results[k].register_hook(lambda g: g * 2)
            if any(results[k].requires_grad for k in wanted):
                sum(results[k].sum() for k in wanted).backward()
            found.append(calls)
    assert found[0] and found[:3] == found[3:]


def test_a_hook_of_several_tensors_is_called_once():
    net, found = Pair(SECONDS["of the argument"]), []
    for module in (net, ORTModule(copy.deepcopy(net))):
        results = module(torch.linspace(-1, 2, 6).view(2, 3).requires_grad_())
        calls = []
        torch.autograd.graph.register_multi_grad_hook(results, calls.append)
        results[1].sum().backward()
        found.append(calls)
    torch.testing.assert_close(*found)
    assert found[0][0][0] is None

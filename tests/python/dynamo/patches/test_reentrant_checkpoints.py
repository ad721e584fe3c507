"""A reentrant checkpoint gives the gradients that PyTorch's gives, and no others."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # noqa: E402

from steep import ORTModule  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.function = function

    def forward(self, x):
        return self.outer(self.function(self, x))


def of_closure(m, x):
    hidden = m.outer(x)
    return checkpoint(lambda t: m.inner(hidden * t).tanh(), x, use_reentrant=True)


def of_inner_results(m, x):
    def region(t):
        return m.inner(t), (m.inner(t) * t, 3), {"scaled": [m.inner(t) * 2]}

    first, (second, three), third = checkpoint(region, m.outer(x), use_reentrant=True)
    return first + three * second + third["scaled"][0]


def leaving(function):
    def within(x):
        with torch.enable_grad():
            return function(x)

    return within


USES = {
    "that leaves no_grad": lambda m, x: checkpoint(leaving(m.inner), x, use_reentrant=True),
    "closure": of_closure,
    "weights": lambda m, x: checkpoint(lambda t: m.inner(t).tanh(), x, use_reentrant=True),
    "module": lambda m, x: checkpoint(m.inner, x, use_reentrant=True),
    "list": lambda m, x: checkpoint(
        lambda ts: m.inner(ts[0]).tanh(), [m.outer(x)], use_reentrant=True
    ),
    "input that requires one": lambda m, x: checkpoint(m.inner, m.outer(x), use_reentrant=True),
    "one of two": lambda m, x: checkpoint(
        lambda a, b: m.inner(a) * b, x, m.outer(x), use_reentrant=True
    ),
    "inner results": of_inner_results,
    "not reentrant": lambda m, x: checkpoint(m.inner, x, use_reentrant=False),
    "sequence": lambda m, x: checkpoint_sequential([m.inner, torch.tanh], 2, x, use_reentrant=True),
    "no grad": torch.no_grad()(lambda m, x: checkpoint(m.inner, x, use_reentrant=True)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_gradients_and_warnings(use, requires_grad):
    torch.manual_seed(0)
    x, results = torch.randn(3, 4), []
    module = Net(use)
    for net in (module, ORTModule(module)):
        module.zero_grad()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            net(x.clone().requires_grad_(requires_grad)).square().sum().backward()
        said = {str(w.message) for w in found if "requires_grad=True" in str(w.message)}
        results.append(([p.grad for p in module.parameters()], said))
    (gradients, said), (ours, said_by_us) = results
    assert said_by_us == said
    assert [g is None for g in ours] == [g is None for g in gradients]
    for a, b in zip(ours, gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_option_that_pytorch_refuses():
    net = ORTModule(Net(lambda m, x: checkpoint(m.inner, x, use_reentrant=True, debug=True)))
    with pytest.raises(ValueError, match="use_reentrant=False"):
        net(torch.ones(3, 4))

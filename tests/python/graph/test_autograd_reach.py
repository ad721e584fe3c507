"""What no gradient reaches has no part in backward: histories may be gone, hooks are quiet."""

import copy

import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402


class Stateful(torch.nn.Module):
    """Keeps its state between calls, as truncated backpropagation through time does."""

    def __init__(self):
        super().__init__()
        self.cell, self.state = torch.nn.GRUCell(4, 4), None

    def forward(self, x):
        before = torch.zeros(x.shape[0], 4) if self.state is None else self.state.detach()
        self.state = self.cell(x, before)
        return self.state


class Unseen(torch.nn.Linear):
    def forward(self, x, h):
        with torch.no_grad():
            scale = h.exp() + (h > 0)
        return super().forward(x) * scale * (h.argmax(1, keepdim=True) + 1)


def freed(x):
    """Return a tensor whose history PyTorch has let go of."""
    h = x * torch.ones(4, requires_grad=True)
    h.sum().backward()
    return h


CASES = {
    "state": (Stateful, lambda x: (x,)),
    "no_grad": (lambda: Unseen(4, 4), lambda x: (x, freed(x))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_history_that_is_gone(name):
    torch.manual_seed(0)
    make, given = CASES[name]
    torch_net = make()
    net = ORTModule(copy.deepcopy(torch_net), fallback=None)
    for _ in range(3):
        x = torch.randn(3, 4)
        for m in (torch_net, net):
            m(*given(x)).square().sum().backward()
        for p, q in zip(torch_net.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-4)


def test_hooks_of_what_a_second_derivative_does_not_have():
    torch.manual_seed(0)
    net = ORTModule(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()))
    seen = []
    for name, p in net.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((name, p.grad)))
    last = torch.nn.Linear(4, 4)
    net[1] = torch.nn.Sequential(torch.nn.Tanh(), last)
    last.bias.register_post_accumulate_grad_hook(lambda p: seen.append(("last", p.grad)))
    x = torch.randn(3, 4, requires_grad=True)
    (g,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    g.square().sum().backward()
    assert sorted(name for name, _ in seen) == ["0.bias", "0.weight"]
    assert all(grad is not None for _, grad in seen)


STEPS = {
    "floor": torch.floor,
    "round": torch.round,
    "sign": torch.sign,
    "filled": lambda y: y.clone().fill_(1),
    "slope of relu": torch.func.grad(lambda v: torch.relu(v).sum()),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_only_steps_reach_has_zeros(name):
    """And is decayed by optimizers, as what has no gradient is not."""

    class Stepped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other, self.unused = (torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            return STEPS[name](self.one(x)) + self.other(x), self.unused(x)

    torch.manual_seed(0)
    torch_net = Stepped()
    net = ORTModule(copy.deepcopy(torch_net), fallback=None)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        for m in (torch_net, net):
            m.zero_grad()
            m(x)[0].sum().backward()
        for p, q in zip(torch_net.parameters(), net.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                torch.testing.assert_close(q.grad, p.grad)

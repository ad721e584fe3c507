"""Changes in place of a tensor's shape and history, and what forward reads of them afterwards."""

import pytest
import torch
from results_and_gradients import run

from steep import ORTModule

X = torch.linspace(-1, 1, 4)


def facts(t):
    """Return what Python reads of a tensor, as a factor of the result."""
    return t.dim() + 2 * t.shape[0] + 3 * t.size(-1) + 5 * t.stride(0) + 7 * len(t) + t.numel()


METHODS = {
    "unsqueeze_": lambda t: t.unsqueeze_(0),
    "squeeze_": lambda t: t.squeeze_(),
    "squeeze_ of one": lambda t: t.squeeze_(0),
    "t_": lambda t: t.t_(),
    "transpose_": lambda t: t.transpose_(0, 1),
    "swapaxes_": lambda t: t.swapaxes_(0, 1),
    "swapdims_": lambda t: torch.Tensor.swapdims_(t, 0, 1),
    "as_strided_": lambda t: t.as_strided_((2,), (1,), 1),
    "as_strided_ as a function": lambda t: torch.as_strided_(t, (2,), (1,), 1),
}
TENSORS = {
    "a view": lambda x: (x + 1).view(1, 4),
    "a part": lambda x: torch.stack([x, x])[:1],
    "a copy": lambda x: (x + 1).reshape(1, 4).clone(),
    "written": lambda x: (x + 1).view(1, 4).mul_(2),
}


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("method", METHODS)
def test_a_shape_that_forward_changes_in_place(method, tensor):
    make, change = TENSORS[tensor], METHODS[method]

    def forward(x):
        c = make(x)
        d = c
        change(c)
        return d * facts(d), c * x.sum(), [part.dim() for part in d]

    assert_same(forward)


def base_and_view(x):
    b = x + 1
    c = b[:]
    c.unsqueeze_(0)
    return b * b.shape[0] + c.dim(), c, b


def kept_under_another_name(x):
    y = x * 2
    d = y.mul_(3)
    y.unsqueeze_(0)
    return d * facts(d), y * facts(y)


def by_to(x):
    b = x + 1
    c = b.to(torch.float32)
    c.unsqueeze_(0)
    return b * facts(b), c * facts(c)


def in_a_loop(x):
    for _ in range(3):
        x = (x * 2).unsqueeze_(0)
        x.squeeze_(0).mul_(1.5)
    return x * facts(x)


def detached_after_use(x):
    y = x * 2
    z = y * 3
    y.detach_()
    return z + y * x


def detached_as_a_function(x):
    y = x * 2
    z = y * 3
    torch.detach_(y)
    return z + y * x, y * x.sum()


def detached_by_another_name(x):
    y = x * 2
    w, z = y, y * 3
    w.detach_()
    return z + y * x


def detached_then_written(x):
    y = x * 2
    z = y * 3
    y.detach_()
    y.mul_(x)
    return z + y * x


def truncated(x):
    y, total = x, 0
    for _ in range(3):
        y = y * x
        total = total + y
        y.detach_()
    return total + y * x


def asked_of_the_base(x):
    b = torch.zeros(4)
    v = b[:2]
    v.mul_(x[:2])
    return b * x if b.requires_grad else x * 5


def asked_of_the_view(x):
    b = torch.ones(4)
    v = b[:2]
    b.mul_(x)
    return v * x[:2] if v.requires_grad else x * 5


class Fn(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


FUNCTIONS = (
    *(base_and_view, kept_under_another_name, by_to, in_a_loop, detached_after_use),
    *(detached_as_a_function, detached_by_another_name, detached_then_written, truncated),
    *(asked_of_the_base, asked_of_the_view),
)


@pytest.mark.parametrize("forward", FUNCTIONS)
def test_what_forward_changes_in_place(forward):
    assert_same(forward)


def test_changes_in_place_leave_the_graph_whole():
    net = ORTModule(Fn(lambda x: (detached_after_use(x), in_a_loop(x))), fallback=None)
    net(X.clone().requires_grad_())


def assert_same(forward):
    module = Fn(lambda x: tuple(t for t in forward(x) if isinstance(t, torch.Tensor)))
    net = ORTModule(module)
    for _ in range(2):
        (theirs,), (ours,) = (run(lambda x, f=f: [f(x)], [X]) for f in (module, net))
        assert [t.shape for t in ours] == [t.shape for t in theirs]
        torch.testing.assert_close(ours, theirs)

"""What changes between two calls of an ORTModule is seen at the next one, or refused by name."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from steep import ModelError, ORTModule  # noqa: E402
from steep.dynamo import backend  # noqa: E402
from steep.patching import torch_versions  # noqa: E402

FACTOR = 2.0


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Bag:
    """An object among the attributes of a module."""


class Scale:
    """One that is called as a function is, and has a state."""

    def __init__(self):
        self.factor = 2.0

    def __call__(self, y):
        return y * self.factor


class Layer(torch.nn.Linear):
    """One whose class a test changes."""

    def forward(self, x):
        return super().forward(x) * 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.settings = {"factor": 2.0}
        self.factors = [1.0, 2.0]
        self.constant = torch.tensor(2.0)
        self.function = torch.tanh
        self.scale = Scale()
        self.bag = Bag()
        self.bag.factor = 3.0
        self.bag.inner = Bag()
        self.bag.inner.factor = 1.5

    def forward(self, x):
        y = self.scale(self.second(self.function(self.first(x))))
        y = y * self.settings["factor"] * self.factors[0]
        return y * self.constant * self.bag.factor * self.bag.inner.factor * FACTOR


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def replace(net, turn):
    torch.manual_seed(turn)
    net.first = torch.nn.Linear(4, 4)


def hook(net, turn):
    if turn == 1:
        net.handle = net.first.register_forward_hook(lambda module, given, result: result * 3)
    else:
        net.handle.remove()


def pre_hook(net, turn):
    if turn == 1:
        net.handle = net.first.register_forward_pre_hook(lambda module, given: (given[0] * 3,))
    else:
        net.handle.remove()


def cut(net, turn):
    if turn == 1:
        prune.l1_unstructured(net.first, "weight", 0.5)
    else:
        prune.remove(net.first, "weight")


def untie(net, turn):
    weight = net.first.weight
    net.second.weight = torch.nn.Parameter(weight.detach() * 2) if turn == 1 else weight


def method_of_class(net, turn):
    plain = torch.nn.Linear.forward
    Layer.forward = lambda self, x: plain(self, x) * (turn + 2)


def hook_of_all(net, turn):
    if turn == 1:
        hooks = torch.nn.modules.module
        HANDLES.append(hooks.register_module_forward_hook(lambda m, given, y: y * 3))
    else:
        HANDLES.pop().remove()


HANDLES = []


def set_global(net, turn):
    globals()["FACTOR"] = 2.0 + turn


def layers():
    return torch.nn.Sequential(Layer(4, 4), torch.nn.Tanh())


CHANGES = {
    "submodule": (Net, replace),
    "dict": (Net, lambda net, turn: net.settings.update(factor=2.0 + turn)),
    "list": (Net, lambda net, turn: net.factors.__setitem__(0, 2.0 + turn)),
    "tensor": (Net, lambda net, turn: setattr(net, "constant", torch.tensor(3.0 + turn))),
    "tensor in place": (Net, lambda net, turn: net.constant.add_(1)),
    "function": (Net, lambda net, turn: setattr(net, "function", (torch.sin, torch.cos)[turn - 1])),
    "object": (Net, lambda net, turn: setattr(net.bag, "factor", 5.0 + turn)),
    "object called": (Net, lambda net, turn: setattr(net.scale, "factor", 5.0 + turn)),
    "object within": (Net, lambda net, turn: setattr(net.bag.inner, "factor", 5.0 + turn)),
    "hook": (Net, hook),
    "pre hook": (Net, pre_hook),
    "pruning": (Net, cut),
    "tie": (Tied, untie),
    "global": (Net, set_global),
    "method of a class": (layers, method_of_class),
    "hook of all modules": (layers, hook_of_all),
}


def assert_close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.detach().abs().max()))


def compare(torch_net, net, *inputs):
    """Results, every gradient, every buffer."""
    for m in (torch_net, net):
        m.zero_grad()
    result, expected = net(*inputs), torch_net(*inputs)
    assert_close(result, expected)
    weights = torch.randn_like(expected)
    (result * weights).sum().backward()
    (expected * weights).sum().backward()
    for (name, p), (other, q) in zip(
        torch_net.named_parameters(), net.named_parameters(), strict=True
    ):
        assert name == other
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            assert_close(q.grad, p.grad)
    for p, q in zip(torch_net.buffers(), net.buffers(), strict=True):
        assert_close(q, p)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_calls_is_seen(name, monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 2.0)  # put back afterwards
    monkeypatch.setattr(Layer, "forward", Layer.forward)
    make, change = CHANGES[name]
    torch_net = make()
    inner = copy.deepcopy(torch_net)
    net = ORTModule(inner)
    x = torch.randn(3, 4)
    compare(torch_net, net, x)
    for turn in (1, 2):
        change(torch_net, turn)
        change(inner, turn)
        compare(torch_net, net, x)


def test_other_lengths_of_a_loop():
    torch_net = torch.nn.RNN(4, 5, batch_first=True)
    net = ORTModule(copy.deepcopy(torch_net))
    for length in (5, 9):
        x = torch.randn(2, length, 4)
        assert_close(net(x)[0], torch_net(x)[0])


def test_a_decision_about_an_argument_is_taken_at_each_call():
    class Masked(torch.nn.Linear):
        def forward(self, x, mask):
            y = super().forward(x)
            return y if mask.all() else y * mask * 3

    torch_net = Masked(4, 4)
    net = ORTModule(copy.deepcopy(torch_net))
    for turn in range(4):
        mask = torch.ones(3, 1)
        mask[turn % 2] = turn % 2
        compare(torch_net, net, torch.randn(3, 4), mask)
    assert len(net.report().graphs) == 2


@pytest.mark.parametrize("norm", [torch.nn.BatchNorm1d, torch.nn.BatchNorm2d])
def test_running_variance_is_the_samples(norm):
    torch_net = torch.nn.Sequential(norm(3), torch.nn.Tanh())
    net = ORTModule(copy.deepcopy(torch_net))
    shape = (4, 3) if norm is torch.nn.BatchNorm1d else (2, 3, 4, 5)
    for _ in range(3):
        compare(torch_net, net, torch.randn(shape))


ACTIVATIONS = [torch.nn.Tanh(), torch.nn.Sigmoid(), torch.nn.Softmax(-1), torch.nn.Identity()]


@pytest.mark.parametrize("last", ACTIVATIONS, ids=lambda m: type(m).__name__)
def test_a_result_changed_in_place_before_backward(last):
    """As in PyTorch: an error where backward reads the result, else the right gradient."""
    torch_net = torch.nn.Sequential(torch.nn.Linear(4, 4), last)
    net = ORTModule(copy.deepcopy(torch_net))
    x = torch.randn(3, 4)
    for m in (torch_net, net):
        y = m(x)
        y.mul_(2)
        if isinstance(last, torch.nn.Identity):
            y.square().sum().backward()
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.square().sum().backward()
    if isinstance(last, torch.nn.Identity):
        assert_close(net.module[0].weight.grad, torch_net[0].weight.grad)


class Narrowed(torch.nn.Module):
    """A layer in a region of autocast that names no dtype."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu"):
            return self.layer(x)


def test_the_dtype_that_autocast_has_where_none_is_named():
    net = ORTModule(Narrowed())
    before = torch.get_autocast_dtype("cpu")
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cpu", dtype)
            assert net(torch.randn(3, 4)).dtype == dtype
    finally:
        torch.set_autocast_dtype("cpu", before)


def test_gradient_penalty():
    torch_net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    net = ORTModule(copy.deepcopy(torch_net))
    x = torch.randn(5, 4)
    losses = []
    for m in (torch_net, net):
        inputs = x.clone().requires_grad_()
        y = m(inputs)
        (g,) = torch.autograd.grad(y, inputs, torch.ones_like(y), create_graph=True)
        loss = y.mean() + 10 * (g.norm(dim=1) - 1).square().mean()
        loss.backward()
        losses.append(loss.detach())
    assert_close(losses[1], losses[0])
    for p, q in zip(torch_net.parameters(), net.parameters(), strict=True):
        assert_close(q.grad, p.grad)


def test_gradcheck_and_second_derivatives():
    net = ORTModule(
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    )
    x = torch.randn(2, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(net, (x,))
    assert torch.autograd.gradgradcheck(net, (x,))


def test_second_derivatives_of_dropout_are_refused():
    net = ORTModule(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)))
    y = net(torch.randn(3, 4)).sum()
    with pytest.raises(ModelError, match="draws random numbers"):
        torch.autograd.grad(y, list(net.parameters()), create_graph=True)


def test_forward_may_be_wrapped_as_accelerate_does():
    net = ORTModule(torch.nn.Linear(4, 4))
    own = net.forward
    net.forward = lambda *args: own(*args) * 2
    x = torch.randn(3, 4)
    assert_close(net(x), 2 * net.module(x))
    del net.forward
    assert_close(net(x), net.module(x))


def test_an_ort_module_within_another():
    torch_net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    inner = copy.deepcopy(torch_net)
    net = ORTModule(torch.nn.Sequential(ORTModule(inner[0]), inner[1]))
    compare(torch_net, net, torch.randn(3, 4))


def test_shape_propagation_computes_nothing():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    net = ORTModule(torch.nn.Linear(4, 5))
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = net(torch.empty(2, 4))
    assert isinstance(y, FakeTensor) and y.shape == (2, 5)
    assert not net.report().graphs


def test_shape_propagation_through_the_backend():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    torch._dynamo.reset()
    net = torch.compile(torch.nn.Linear(4, 5), backend=backend.backend)
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = net(torch.empty(2, 4))
    assert isinstance(y, FakeTensor) and y.shape == (2, 5)
    torch.testing.assert_close(net(torch.ones(2, 4)).shape, y.shape)


@pytest.mark.parametrize("of", ["argument", "parameter"])
def test_derivatives_in_forward_mode_are_refused(of):
    net = ORTModule(torch.nn.Linear(4, 5))
    x = torch.randn(2, 4)
    net(x)
    with forward_ad.dual_level():
        weight = forward_ad.make_dual(net.weight.detach(), torch.ones(5, 4))
        if of == "parameter" and torch_versions.RELEASE >= (2, 14):  # its tracer leaves it alone
            y = torch.func.functional_call(net, {"weight": weight}, (x,))
            assert_close(forward_ad.unpack_dual(y).tangent, x @ torch.ones(4, 5))
            return
        with pytest.raises(ModelError, match="forward-mode"):
            if of == "argument":
                net(forward_ad.make_dual(x, x))
            else:
                torch.func.functional_call(net, {"weight": weight}, (x,))
    net(x)


def test_checkpoint_around_the_first_call():
    torch_net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    net = ORTModule(copy.deepcopy(torch_net))
    x = torch.randn(3, 4)
    checkpoint(net, x, use_reentrant=False).sum().backward()
    torch_net(x).sum().backward()
    for p, q in zip(torch_net.parameters(), net.parameters(), strict=True):
        assert_close(q.grad, p.grad)


REGIONS = {
    "cond": lambda y: torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)),
    "hook": lambda y: (y.register_hook(lambda g: g * 2), y)[1],
    "nothing": lambda y: y,
}


@pytest.mark.parametrize("name", REGIONS)
def test_attributes_written_after_a_region(name):
    """PyTorch's tracer forgets them: a region leaves a copy of what was written in its place."""

    class Counts(torch.nn.Linear):
        count, kept = 0, None

        def forward(self, x):
            y = super().forward(x)
            self.kept, self.count = y.detach(), self.count + 1
            y = REGIONS[name](y)
            self.kept, self.count = self.kept * 2 + 1, self.count + 1
            return y + self.kept

    torch.manual_seed(0)
    module = Counts(4, 4)
    ours = ORTModule(copy.deepcopy(module))
    for rows in (3, 2, 5):
        x = torch.randn(rows, 4)
        for net in (module, ours):
            net.zero_grad()
            (net(x) * torch.linspace(-1, 2, 4)).sum().backward()
        assert ours.count == module.count
        torch.testing.assert_close(ours.kept, module.kept)
        torch.testing.assert_close(ours.weight.grad, module.weight.grad)


class Written(torch.nn.Module):
    """Writes to an argument, and then reads another."""

    def forward(self, x, y):
        y.mul_(2)
        return x * 3 + y


def apart():
    return torch.randn(5, 4), torch.randn(5, 4)


def in_one_memory():
    rows = torch.randn(6, 4)
    return rows[:5], rows[1:]


@pytest.mark.parametrize("order", [(apart, in_one_memory), (in_one_memory, apart)])
def test_arguments_that_share_memory_after_a_call(order):
    torch._dynamo.reset()
    net = ORTModule(Written(), fallback="torch")
    for make in (*order, *order):
        torch.manual_seed(0)
        expected = Written()(*make())
        torch.manual_seed(0)
        given = make()
        assert_close(net(*given), expected)


def test_that_pytorch_runs_arguments_that_share_memory_is_said_once(caplog):
    torch._dynamo.reset()
    net = ORTModule(Written(), fallback="parts")
    for make in (apart, in_one_memory, in_one_memory):
        torch.manual_seed(0)
        expected = Written()(*make())
        torch.manual_seed(0)
        assert_close(net(*make()), expected)
    assert caplog.text.count("whose arguments share memory") == 1


def test_arguments_that_share_memory_are_refused_where_nothing_is_left_to_pytorch():
    torch._dynamo.reset()
    net = ORTModule(Written(), fallback=None)
    net(*apart())
    given = in_one_memory()
    before = [t.clone() for t in given]
    with pytest.raises(ModelError, match="shares its memory") as refused:
        net(*given)
    assert refused.value.remedy.endswith('let PyTorch run it: fallback="parts"')
    for t, was in zip(given, before, strict=True):
        assert_close(t, was)
    same = torch.randn(5, 4)
    net(same, torch.randn(5, 4))  # what is only read may be anything's

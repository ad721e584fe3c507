"""Functions whose backward is their own, torch.autograd.Function, in the one captured graph."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import steep

WIDTH = 4


class Scaled(torch.autograd.Function):
    """Two results; gradients that are not the derivatives, and none for the number."""

    @staticmethod
    def forward(ctx, x, w, k):
        ctx.save_for_backward(x, w)
        ctx.k = k
        return x * w * k, (x * w).sum()

    @staticmethod
    def backward(ctx, dy, ds):
        x, w = ctx.saved_tensors
        return (3 * dy * w * ctx.k + ds * w).clamp(-1, 1), (dy * x * ctx.k).sum(0) * 7, None


class Rounded(torch.autograd.Function):
    """Straight through, of an operator that has no slope."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, dy):
        return dy


class Sorted(torch.autograd.Function):
    """A result that is not differentiable, and one of integers."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.sort(-1)
        sign = values.sign()
        ctx.save_for_backward(places)
        ctx.mark_non_differentiable(sign, places)
        return values, sign, places

    @staticmethod
    def backward(ctx, dy, _, __):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(dy).scatter(-1, places, dy) * 2


class Twice(torch.autograd.Function):
    """Another within."""

    @staticmethod
    def forward(ctx, x):
        return Rounded.apply(x * 3) / 3

    @staticmethod
    def backward(ctx, dy):
        return dy * 5


class Cube(torch.autograd.Function):
    """With the true derivative, which has one too."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * 3 * x**2


class Exp(torch.autograd.Function):
    """Reads its result in backward."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0]


class Unslope(torch.autograd.Function):
    """Whose backward has a part that is not differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            slope = x * 2
        return dy * slope


class Square(torch.autograd.Function):
    """One that transforms of ``torch.func`` take; its backward is not forward's derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * x * 7


def viewed_and_written(m, x):
    base = torch.zeros_like(x)
    view = base[1:]
    base.copy_(m.layer(x))
    return Square.apply(view)


class Widened(torch.autograd.Function):
    """A gradient of another dtype than its argument has."""

    @staticmethod
    def forward(ctx, x):
        return x.double() * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


def sort_all(m, x):
    values, sign, places = Sorted.apply(m.layer(x))
    return values.tanh() + sign + places


FUNCTIONS = {
    "two results": lambda m, x: [t.tanh() for t in Scaled.apply(m.layer(x), m.w, m.k)],
    "one of two": lambda m, x: Scaled.apply(m.layer(x), m.w, 2.0)[1],
    "the same twice": lambda m, x: Rounded.apply(Rounded.apply(m.layer(x) * 9) / 2),
    "no derivative": sort_all,
    "within another": lambda m, x: Twice.apply(m.layer(x)),
    "in a checkpoint": lambda m, x: checkpoint(
        lambda h: Scaled.apply(m.layer(h), m.w, 2.0)[0].tanh(), x, use_reentrant=False
    ),
    "without gradients": lambda m, x: Scaled.apply(m.layer(x).detach(), m.w, 2.0)[0] + m.layer(x),
    "another dtype": lambda m, x: Widened.apply(m.layer(x)).float().tanh(),
    "that is read in backward": lambda m, x: Exp.apply(m.layer(x)) + Unslope.apply(x),
    "of a view": lambda m, x: Same.apply(m.layer(x)) * Same.apply(x),
    "of a view of what is written": viewed_and_written,
    "of its result": lambda m, x: Cube.apply(Cube.apply(m.layer(x)) + x),
}


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.w = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH))
        self.function, self.k = function, 1.5

    def forward(self, x):
        return self.function(self, x)


class Told(torch.autograd.Function):
    """Whose backward asks which gradients there are."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, dy, dz):
        return dy * 7 if dz is None else dy * 2 + dz * 3


class Same(torch.autograd.Function):
    """Gives its argument."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return -dy


def both(m, x):
    hidden = m.layer(x)
    return hidden, Same.apply(hidden)


# PyTorch runs these, between parts: a result in its argument's memory, a gradient that is None, a
# transform of functions around one.
IN_PARTS = {
    "an argument": lambda m, x: (Same.apply(x), m.layer(x)),
    "a value and its view": both,
    "within a slope": lambda m, x: torch.func.grad(lambda v: Square.apply(v).sum())(m.layer(x)),
    "within a product": lambda m, x: torch.func.vjp(Square.apply, m.layer(x))[1](x)[0] + m.layer(x),
    "of each row": lambda m, x: torch.func.vmap(Square.apply)(m.layer(x)),
    "no gradient of one": lambda m, x: Told.apply(m.layer(x))[0].tanh(),
}


def total(result):
    some = result if isinstance(result, (list, tuple)) else [result]
    return sum((t * torch.linspace(-1, 2, t.numel()).view(t.shape)).sum() for t in some)


@pytest.mark.parametrize("name", [*FUNCTIONS, *IN_PARTS])
def test_gradients_are_those_of_its_backward(name):
    torch.manual_seed(0)
    net = Net({**FUNCTIONS, **IN_PARTS}[name])
    ours = steep.ORTModule(copy.deepcopy(net), fallback=None if name in FUNCTIONS else "parts")
    for rows in (3, 5, 2):
        net.k = ours.module.k = net.k + 1
        x = torch.randn(rows, WIDTH)
        found = []
        for m in (net, ours):
            m.zero_grad()
            given = x.clone().requires_grad_()
            loss = total(m(given))
            loss.backward()
            found.append([loss, given.grad, *(p.grad for p in m.parameters())])
        for right, value in zip(*found, strict=True):
            torch.testing.assert_close(value, right, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(total(ours(x)), total(net(x)))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: Cube.apply(m.layer(x)),
        lambda m, x: Exp.apply(Cube.apply(m.layer(x)).tanh()),
    ],
)
def test_second_derivatives(function):
    net = steep.ORTModule(Net(function).double(), fallback=None)
    x = torch.randn(2, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, (x,))
    assert torch.autograd.gradgradcheck(net, (x,))


def test_what_a_backward_does_not_differentiate_is_pytorchs():
    net = Net(lambda m, x: Unslope.apply(m.layer(x)))
    ours = steep.ORTModule(copy.deepcopy(net))
    x = torch.randn(2, WIDTH)
    found = []
    for m in (net, ours):
        given = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(m(given).sum(), given, create_graph=True)
        found.append(slope)
        found.append(torch.autograd.grad((slope * slope).sum(), given, materialize_grads=True)[0])
    torch.testing.assert_close(found[2:], found[:2])


def test_in_a_trainer():
    torch.manual_seed(0)
    net = Net(lambda m, x: Scaled.apply(m.layer(x), m.w, 2.0)[0].tanh())
    twin = copy.deepcopy(net)
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(3):
        x, y = torch.randn(5, WIDTH), torch.randn(5, WIDTH)
        optimizer.zero_grad()
        nn.functional.mse_loss(twin(x), y).backward()
        optimizer.step()
        trainer.step(x, y)
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


def test_one_that_writes_its_argument_is_refused_by_line():
    net = Net(lambda m, x: Writes.apply(m.layer(x)))
    with pytest.raises(steep.ModelError, match=r"test_autograd_function\.py:\d+"):
        steep.ORTModule(net, fallback=None)(torch.randn(2, WIDTH))
    assert steep.ORTModule(net)(torch.ones(2, WIDTH)).requires_grad


class Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, count):
        ctx.count = count
        return x * 1

    @staticmethod
    def backward(ctx, dy):
        ctx.count.add_(1)
        return 2 * dy, None


class Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, most):
        ctx.most = most
        return x * 1

    @staticmethod
    def backward(ctx, dy):
        ctx.most.copy_(torch.maximum(ctx.most, dy.abs().max()))
        return 2 * dy, None


class Last(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        return x * 1

    @staticmethod
    def backward(ctx, dy):
        ctx.kept[:2] = dy.mean()
        return 2 * dy, None


@pytest.mark.parametrize("function", [Counts, Largest, Last])
def test_what_backward_writes_is_written_in_backward(function):
    torch.manual_seed(0)
    net = Net(lambda m, x: function.apply(m.layer(x), m.kept).sin())
    net.register_buffer("kept", torch.zeros(WIDTH))
    ours, seen = steep.ORTModule(copy.deepcopy(net)), []
    for m in (net, ours):
        seen.append([])
        for times in (0, 1, 2):
            losses = [m(torch.full((2, WIDTH), 1.0 + k)).sum() for k in range(2)]
            for loss in losses[:times]:
                loss.backward()
                seen[-1].append(m.kept.clone())
            seen[-1].append(m.kept.clone())
        seen[-1] += [p.grad for p in m.parameters()]
    torch.testing.assert_close(*seen)
    assert all("in its backward" in why for why in ours.report().graphs[-1].in_torch)
    assert ours.report().graphs[-1].operators
    with pytest.raises(steep.ModelError, match="writes a tensor in its backward"):
        steep.ORTModule(net, fallback=None)(torch.ones(2, WIDTH))


def test_of_a_file():
    """An operator of ours that a file should not have is an error, whatever its operands."""
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    for op, inputs, count in (
        ("WithGradient", [], 1),
        ("WithGradient", ["x"], 1),
        ("WithGradient", ["x"] * 4, 2**40),
        ("WithGradient", ["x"] * 5, -1),
        ("GradientOf", [], 0),
        ("GradientOf", ["x"], 0),
        ("StopGradient", ["x"], 0),
    ):
        node = helper.make_node(op, inputs, ["y"], domain="steep")
        node.attribute.append(helper.make_attribute("outputs", count))
        graph = helper.make_graph([node], "g", [x], [y])
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("steep", 1)]
        model = helper.make_model(graph, opset_imports=opsets)
        with pytest.raises(steep.Error):
            session = steep.InferenceSession(model.SerializeToString())
            session.run(None, {"x": [1.0, 2.0]})

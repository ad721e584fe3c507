"""What the tracer does not follow runs as in PyTorch, and the rest of the module in the engine."""

import copy

import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.function = function

    def forward(self, x):
        return self.last(self.function(self, self.first(x).sin())).cos()


def parameter_data(net, y):
    net.scale.data = net.scale.data * 1.5
    return y * net.scale


def result_data(net, y):
    z = y * net.scale
    z.data = z.data * 3
    return z * z


def saved_on_cpu(net, y):
    with torch.autograd.graph.save_on_cpu():
        return (y * net.scale).exp()


def saved_twice(net, y):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 2):
        return y * y


def hook_removed(net, y):
    z = y * net.scale
    z.register_hook(lambda g: g * 100).remove()
    return z


def gradients_again(net, y):
    with torch.no_grad():
        with torch.enable_grad():
            z = y * net.scale
        other = y * 3
    return z + other


def behind_a_break(net, y):
    z = y * net.scale
    torch._dynamo.graph_break()
    z.register_hook(lambda g: g * 2)
    w = z.exp()
    w.register_hook(lambda g: g + 1)
    return w + z


def slope_behind_a_break(net, y):
    """Backward of the first graph runs while Dynamo looks for code to capture."""
    z = (y * net.scale).exp()
    torch._dynamo.graph_break()
    (slope,) = torch.autograd.grad(z.sum(), y, retain_graph=True)
    return z + slope


@pytest.mark.parametrize(
    "function",
    [
        *(parameter_data, result_data, saved_on_cpu, saved_twice, hook_removed),
        *(gradients_again, behind_a_break, slope_behind_a_break),
    ],
)
@pytest.mark.parametrize("wrap", [ORTModule, lambda m: torch.compile(m, backend="steep")])
def test_it_runs_as_in_pytorch(function, wrap):
    if function is hook_removed and wrap is not ORTModule:
        pytest.skip("PyTorch's tracer raises an AssertionError, with every backend")
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = Net(function)
    other = copy.deepcopy(net)
    found = []
    for module, call in ((net, net), (other, wrap(other))):
        for rows in (2, 4):
            x = torch.linspace(-1, 2, 3 * rows).view(rows, 3).requires_grad_()
            y = call(x)
            y.sum().backward()
            found += [y.detach(), x.grad, module.first.weight.grad.clone()]
            found.append(module.scale.detach().clone())
    half = len(found) // 2
    torch.testing.assert_close(found[half:], found[:half])

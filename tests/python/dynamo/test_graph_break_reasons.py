"""Each reason names the line of the user's code, and what to do about it."""

import inspect
import random
import re
import time
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from steep import ModelError, ORTModule  # noqa: E402
from steep.patching import torch_versions  # noqa: E402

HERE = re.escape(__file__)


def draws(m, x):
    return m.layer(x) * random.random()


def looks_at_the_clock(m, x):
    m.began = time.perf_counter()
    return m.layer(x)


def prints(m, x):
    print(x.sum())
    return m.layer(x)


def branches(m, x):
    y = m.layer(x)
    return y if x.sum() > 0 else -y


def branches_in_a_loop(m, x):
    y = m.layer(x)
    for _ in range(2):
        if y.sum() > 0:
            y = m.layer(y)
    return y


def takes_a_number(m, x):
    return m.layer(x) * x.sum().item()


def opens(m, x):
    y = m.layer(x)
    with open("/dev/null"):
        return m.layer(y)


def of_eigenvalues(m, x):
    return m.layer(x).sum() + torch.linalg.eigvals(m.layer.weight).abs().sum()


def gives_a_distribution(m, x):
    return torch.distributions.Normal(m.layer(x), m.layer.weight[:2].exp())


def of_a_slope(m, x):
    return torch.func.grad(lambda v: Own.apply(m.layer(v)).sum())(x)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


REASONS = {
    draws: r"a call of random\.random \(HERE\): write torch\.rand",
    looks_at_the_clock: r"a call of time\.perf_counter \(HERE\): read the clock before",
    prints: r"a call of print \(HERE\): use logging",
    branches: r"a branch on the values of a tensor \(HERE\): write torch\.where",
    branches_in_a_loop: r"a branch on the values of a tensor \(HERE\): write torch\.where",
    takes_a_number: r"a Python number taken from a tensor.* \(HERE\): keep it a tensor",
    opens: r"a call of open \(HERE\): move the call out of forward",
    of_eigenvalues: r"ONNX has no operator for aten\.linalg_eig.* \(HERE\): write it in operators",
    gives_a_distribution: r"shares memory with another \(HERE\): clone\(\) one",
    of_a_slope: r"Function within a transform of torch\.func \(HERE\): write what its backward",
}


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


@pytest.mark.parametrize("function", REASONS, ids=lambda f: f.__name__)
def test_a_reason(function, capfd):
    if function is draws and torch_versions.RELEASE >= (2, 14):
        pytest.skip("PyTorch's tracer draws from 2.14 on")
    net = ORTModule(Net(function))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        net(torch.randn(2, 3))
    assert not [w for w in said if "trace" in str(w.message)]
    report = net.report()
    reasons = [*report.breaks, *(why for graph in report.graphs for why in graph.in_torch)]
    lines, first = inspect.getsourcelines(function)
    last = "|".join(str(first + i) for i in range(len(lines)))
    pattern = REASONS[function].replace("HERE", f"{HERE}:({last})")
    assert any(re.search(pattern, why) for why in reasons), reasons
    for why in reasons:
        assert re.search(rf"\({HERE}:\d+\)(: \w|, whole: \w)", why), why
    if function is not branches:  # it is a condition of one graph
        with pytest.raises(ModelError, match=pattern):
            ORTModule(Net(function), fallback=None)(torch.randn(2, 3))
    assert "file an issue" not in capfd.readouterr().err


class Agent(nn.Module):
    """Has methods beside forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)

    def act(self, x):
        return self.forward(x).tanh()

    def width(self):
        return self.layer.weight.shape[0]


def test_a_method_beside_forward_is_said_once(caplog):
    torch.manual_seed(0)
    agent = Agent()
    ours = ORTModule(agent)
    x = torch.randn(2, 3)
    assert ours.width() == 3 and not ours.report().other_methods
    with caplog.at_level("WARNING", "steep"):
        for _ in range(2):
            torch.testing.assert_close(ours.act(x), agent.act(x))
    (said,) = [r.getMessage() for r in caplog.records]
    assert "PyTorch runs a method other than forward: Agent.act" in said and __file__ in said
    report = ours.report()
    assert len(report.other_methods) == 1 and not report.whole
    assert "Agent.act" in str(report)
    assert ours.act == ours.act and ours.act.__self__ is agent
    assert inspect.signature(ours.act) == inspect.signature(agent.act)
    # what it says to do instead
    compiled = torch.compile(agent.act, backend="steep")
    torch.testing.assert_close(compiled(x), agent.act(x))

"""``ORTModule(module, loss=…)``: the loss is a part of the graph."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep import ORTModule  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(6, 5, 8, generator=GENERATOR)
LABELS = torch.randint(0, 7, (6, 5), generator=GENERATOR)
IGNORED = torch.where(torch.arange(30).reshape(6, 5) % 3 > 0, -100, LABELS)


class Net(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.hidden = torch.nn.Linear(8, 16)
        self.dropout = torch.nn.Dropout(dropout)
        self.scores = torch.nn.Linear(16, 7)

    def forward(self, x, scale=None):
        h = self.dropout(torch.tanh(self.hidden(x)))
        return self.scores(h if scale is None else h * scale)


class Criterion(torch.nn.Module):
    """A loss with a parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.tensor(0.7))
        self.register_buffer("weight", torch.arange(1.0, 8.0))

    def forward(self, scores, label):
        return torch.nn.functional.cross_entropy(
            scores.flatten(0, 1) * self.temperature, label.flatten(), weight=self.weight
        )


def plain(scores, label):
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), label.flatten())


def squared(scores, label):
    return ((scores - label) ** 2).mean()


CASES = {
    "function": (plain, LABELS),
    "ignored labels": (plain, IGNORED),
    "module": (Criterion(), LABELS),
    "float labels": (squared, torch.randn(6, 5, 7, generator=GENERATOR)),
}


def gradients(*modules):
    return [p.grad.clone() for m in modules for p in m.parameters()]


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_pytorch(case):
    loss, label = copy.deepcopy(CASES[case])
    net = Net()
    other, other_loss = copy.deepcopy((net, loss))
    parts = [m for m in (loss, other_loss) if isinstance(m, torch.nn.Module)]
    model = ORTModule(net, loss=loss)
    for rows in (6, 4, 3):  # the second extent makes a graph for any extents
        for module in (model, other, *parts):
            module.zero_grad()
        value = model(X[:rows], label[:rows])
        wanted = other_loss(other(X[:rows]), label[:rows])
        torch.testing.assert_close(value, wanted)
        value.backward()
        wanted.backward()
        for a, b in zip(gradients(net, *parts[:1]), gradients(other, *parts[1:]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert not model.report().breaks


def test_arguments_by_name_come_with_the_label():
    model, net = ORTModule(Net(), loss=plain), Net()
    scale = torch.tensor(2.0)
    torch.testing.assert_close(model(X, LABELS, scale=scale), plain(net(X, scale), LABELS))
    torch.testing.assert_close(model(X, scale, LABELS), plain(net(X, scale), LABELS))
    with pytest.raises(steep.DataError, match="no label"):
        model(x=X)


def test_parameters_and_states_are_the_modules():
    net = Net()
    model = ORTModule(net, loss=Criterion())
    assert list(model.state_dict()) == list(net.state_dict())
    assert [id(p) for p in model.parameters()] == [id(p) for p in net.parameters()]
    assert not model.eval().training and not net.hidden.training


def test_modes_and_results():
    net = Net(dropout=0.5)
    model = ORTModule(net, loss=plain)
    model.eval()
    wanted = plain(net(X), LABELS)
    with torch.no_grad():
        torch.testing.assert_close(model(X, LABELS), wanted.detach())
        torch.testing.assert_close(ORTModule(model.module)(X), net(X))
    model.train()
    assert not torch.isclose(model(X, LABELS), wanted)


def test_copies_have_the_loss():
    model = ORTModule(Net(), loss=Criterion())
    wanted = model(X, LABELS)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(X, LABELS), wanted)
        assert other.module is not model.module


def test_pytorch_runs_it_where_it_may():
    def odd(scores, label):
        if float(scores.sum()) > 1e9:  # the graph ends here
            return scores.sum()
        return plain(scores, label)

    model, net = ORTModule(Net(), loss=odd, fallback="torch"), Net()
    torch.testing.assert_close(model(X, LABELS), plain(net(X), LABELS))
    assert model.fallback_calls == 1
    parts = ORTModule(Net(), loss=odd)
    torch.testing.assert_close(parts(X, LABELS), plain(net(X), LABELS))


def test_a_label_out_of_range_is_refused():
    model = ORTModule(Net(), loss=plain)
    with pytest.raises((steep.DataError, IndexError)):
        model(X, LABELS + 7)
    with pytest.raises(TypeError, match="loss must be"):
        ORTModule(Net(), loss="mse")


def test_the_scores_need_no_memory():
    """Of 2,000 classes for 512 rows, 1 % of the labels counts."""
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 2000))
    x, label = torch.randn(512, 16), torch.full((512,), -100)
    label[::100] = 3
    loss = torch.nn.CrossEntropyLoss()
    outside, inside = ORTModule(net), ORTModule(net, loss=loss)
    loss(outside(x), label).backward()
    inside(x, label).backward()
    sizes = [sum(p.peak_bytes for p in model.plan()) for model in (outside, inside)]
    assert sizes[1] < 0.5 * sizes[0]

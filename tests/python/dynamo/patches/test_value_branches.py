"""A branch on values of arguments and buffers: whole graphs, one for each way that it goes."""

import copy

import pytest
import torch
from compared_functions import WIDTH, Fn, check, run
from torch import nn

import steep
from steep import ModelError, ORTModule


def rows(count, shift):
    torch.manual_seed(count)
    return torch.randn(count, WIDTH) + shift


# one way, the other, and back, at other extents
CALLS = [[rows(n, shift)] for n, shift in ((5, 9), (5, -9), (7, 9), (4, -9))]


def on_a_sum(y, x):
    return y * 2 if x.sum() > 0 else y.tanh()


def on_all(y, x):
    mask = x.lt(0)
    if not mask.any():
        mask = None
    return y if mask is None else y.masked_fill(mask, 0.5)


def on_a_number(y, x):
    positive = (x > 0).flatten().any().item()
    if positive:
        y = y + 1
    return y.exp() if positive else y


def on_a_count(y, x):
    rows = (x.sum(1) > 0).nonzero()
    return y[rows.view(-1)].sum(0) if rows.size(0) > 0 else y.sum(0) * 0


def on_what_is_written(y, x):
    x = x.clone()
    x[:, 0] = 100
    x.view(-1)[1:].mul_(0.5)
    return y * 2 if x.sum() > 0 else y.sin()


def on_what_is_written_to_the_argument(y, x):
    x.add_(1)
    return y * 2 if x.min() > 0 else y.sin()


def on_both(y, x):
    return y * 2 if x.max() > 0 and x.min() > 0 else y.sin()


@pytest.mark.parametrize(
    "function", [on_a_sum, on_all, on_a_number, on_a_count, on_what_is_written, on_both]
)
def test_graphs_are_whole(function):
    torch.manual_seed(0)
    report = check(Fn(function), CALLS, "engine")
    assert len(report.graphs) <= 4  # two ways, of fixed extents and of any


def test_what_forward_writes_is_written_once():
    torch.manual_seed(0)
    net = Fn(on_what_is_written_to_the_argument)
    ours = ORTModule(copy.deepcopy(net), fallback=None)
    for (x,) in CALLS:
        left, right = x.clone(), x.clone()
        torch.testing.assert_close(ours(left), net(right))
        assert torch.equal(left, right)


class OnWhatIsWritten(nn.Module):
    """Its branch reads one argument that it writes before, and one that it does not write."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x, z):
        x.add_(1)
        return self.weight * 2 * z if (x + z).min() > 0 else self.weight.sin() * z


def test_halves_of_one_tensor_share_nothing():
    eager = OnWhatIsWritten()
    ours = ORTModule(copy.deepcopy(eager), fallback=None)
    for sign in (1, -5):
        left, right = (sign * torch.ones(2, WIDTH) for _ in range(2))
        torch.testing.assert_close(ours(left[0], left[1]), eager(right[0], right[1]))
        assert torch.equal(left, right)


def test_what_is_written_and_read_under_another_name_is_no_condition():
    net = ORTModule(OnWhatIsWritten(), fallback=None)
    both = torch.ones(2 * WIDTH)
    with pytest.raises(ModelError):
        net(both[:WIDTH], both[1 : WIDTH + 1])


class Averages(nn.Module):
    """Begins its average with the first batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("largest", torch.zeros(1))

    def forward(self, x):
        y = self.layer(x)
        if self.largest.max() < 1e-5:
            self.largest = self.largest + y.detach().abs().max()
        else:
            self.largest = self.largest * 0.9 + y.detach().abs().max() * 0.1
        return y / self.largest


def test_a_buffer_that_begins_empty():
    torch.manual_seed(0)
    check(Averages(), CALLS, "engine")


class Begins(nn.Module):
    """Is told by a buffer, which forward writes, that it has begun."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("begun", torch.zeros(()))

    def forward(self, x):
        y = self.layer(x)
        y = y.exp() if self.begun > 1 else y
        self.begun.add_(1)
        return y


def test_a_trainer_asks_its_buffers():
    torch.manual_seed(0)
    eager = Begins()
    net = copy.deepcopy(eager)
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    theirs = torch.optim.SGD(eager.parameters(), 0.1)
    for step in range(4):
        x, y = rows(5, 0), rows(5, step)
        loss = nn.MSELoss()(eager(x), y)
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        torch.testing.assert_close(trainer.step(x, y)[0], loss.detach())
    torch.testing.assert_close(net.layer.weight, eager.layer.weight)


def test_a_way_that_was_gone_needs_no_new_graph():
    net = ORTModule(Fn(on_a_sum), fallback=None)
    (up,), (down,) = CALLS[:2]
    for x in (up, down) * 3:
        net(x)
    assert len(net.report().graphs) == 2
    assert "the condition at" in str(net.report().graphs[1].because)


def on_a_layer(y, x):
    return y * 2 if y.sum() > 0 else y


def on_random_numbers(y, x):
    return y * 2 if torch.rand(()) > 0.5 else y


@pytest.mark.parametrize("function", [on_a_layer, on_random_numbers])
def test_what_only_the_graph_computes_is_no_condition(function):
    torch.manual_seed(0)
    net = ORTModule(Fn(function), fallback=None)
    with pytest.raises(ModelError, match="one graph"):
        run(net, CALLS[0])

"""A trainer's step holds, or is captured again: what changes between steps counts."""

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import steep  # noqa: E402

STEPS = 5


class Net(nn.Module):
    """Anything that changes from step to step."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.scale, self.options = 1.0, {"power": 1}
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mask", torch.ones(6))

    def forward(self, x):
        hidden = torch.tanh(self.first(x)) * self.mask * self.scale
        if self.training:
            self.average.lerp_(hidden.detach().mean(0), 0.25)
            self.calls += 1
        return self.second((hidden - self.average) ** self.options["power"])


class Normalised(nn.Module):
    """Statistics as PyTorch keeps them, and a power iteration's vectors."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)),
            nn.BatchNorm1d(6),
            nn.Linear(6, 3),
        )

    def forward(self, x):
        return self.net(x)


def batch(rows=5):
    return torch.randn(rows, 4), torch.randn(rows, 3)


def compare(make, change=lambda net, step: None, rows=(5,) * STEPS, kind=torch.optim.SGD):
    """Train twins with PyTorch and with Steep; every parameter and buffer must agree."""
    torch.manual_seed(0)
    net = make()
    twin = copy.deepcopy(net)
    optimizer = kind(twin.parameters(), 0.1)
    trainer = steep.trainer(net, nn.MSELoss(), kind(net.parameters(), 0.1))
    for step, n in enumerate(rows):
        for each in (net, twin):
            change(each, step)
        x, y = batch(n)
        optimizer.zero_grad()
        prediction = twin(x)
        expected = nn.functional.mse_loss(prediction, y)
        expected.backward()
        optimizer.step()
        loss, given = trainer.step(x, y)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(given, prediction.detach(), rtol=1e-4, atol=1e-5)
        for (name, a), b in zip(net.state_dict().items(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=f"{name} at step {step}")
    return trainer, net


def test_buffers_that_forward_writes():
    trainer, net = compare(Net)
    assert net.calls == STEPS
    assert len(trainer.report().graphs) == 1


def test_statistics_and_power_iterations():
    compare(Normalised)


def at(when, change):
    return lambda net, step: change(net) if step == when else None


def replace(net, name, value):
    getattr(net, name).data = value(getattr(net, name).data)


CHANGES = {
    "a number": lambda net, step: setattr(net, "scale", 1.0 + step),
    "a number in a dict": at(2, lambda net: net.options.update(power=2)),
    "a hook": at(2, lambda net: net.first.register_forward_hook(lambda m, i, o: o * 2)),
    "a part": at(2, lambda net: setattr(net.second, "forward", lambda x: x[:, :3])),
    "a buffer in place": at(2, lambda net: net.mask.mul_(0.5)),
    "a buffer of its own": at(2, lambda net: setattr(net, "mask", torch.full((6,), 0.5))),
    "a buffer that is written": at(2, lambda net: setattr(net, "average", torch.ones(6))),
    "the memory of a parameter": at(2, lambda net: replace(net.first, "weight", torch.clone)),
    "strides of a parameter": at(
        2, lambda net: replace(net.first, "weight", lambda w: w.t().contiguous().t())
    ),
    "a mode": at(2, lambda net: net.eval()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_between_steps(name):
    compare(Net, CHANGES[name])


def test_parameters_that_no_optimizer_has_are_refused():
    net = Net()
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    trainer.step(*batch())
    net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)
    with pytest.raises(steep.ModelError, match="No trainable parameter"):
        trainer.step(*batch())


# PyTorch has a graph of its own for an extent of 1.
@pytest.mark.parametrize("rows, graphs", [((5, 7, 5, 3, 9, 5), 2), ((5, 1, 5, 7, 5), 3)])
def test_extents_that_change_need_one_graph_more(rows, graphs):
    trainer, _ = compare(Net, rows=rows, kind=torch.optim.AdamW)
    assert len(trainer.report().graphs) == graphs


class Written(nn.Module):
    """Writes an argument, or not."""

    def __init__(self):
        super().__init__()
        self.layer, self.writes = nn.Linear(4, 3), False

    def forward(self, x):
        if self.writes:
            x.mul_(2)
        return self.layer(x)


def test_a_step_that_could_not_be_built_leaves_the_one_before():
    net = Written()
    reduced = nn.MSELoss()
    trainer = steep.trainer(net, reduced, torch.optim.SGD(net.parameters(), 0.1))
    x, y = batch()
    trainer.step(x, y)
    net.writes, reduced.reduction = True, "none"
    with pytest.raises(steep.Error):
        trainer.step(x.clone(), y)
    net.writes, reduced.reduction = False, "mean"
    before = x.clone()
    expected = reduced(net(x), y)
    assert trainer.step(x, y)[0] == pytest.approx(expected.item())
    assert torch.equal(x, before)


@pytest.mark.parametrize(("first", "then"), [(1, 5), (5, 1)])
def test_a_checkpoint_is_for_batches_of_any_size(first, then, tmp_path):
    nets = [Net() for _ in range(2)]
    for net, rows in zip(nets, (first, then), strict=True):
        trainer = steep.trainer(net, nn.MSELoss(), torch.optim.Adam(net.parameters()))
        trainer.step(*batch(rows))
        if rows == first:
            trainer.save_checkpoint(tmp_path / "run")
        else:
            trainer.load_checkpoint(tmp_path / "run")
    for a, b in zip(*(net.state_dict().values() for net in nets), strict=True):
        assert torch.equal(a, b)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        y = self.layer(x)
        return y if y.sum() > 0 else -y


def test_branches_on_values_are_refused_by_line():
    net = Branches()
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    with pytest.raises(steep.ModelError, match=r"test_trainer_capture.py:\d+") as error:
        trainer.step(*batch())
    assert error.value.remedy.endswith("train with ORTModule, where PyTorch can run it")


class WithLoss(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(4, 3), how

    def forward(self, x, y):
        found = self.layer(x)
        loss = nn.functional.mse_loss(found, y)
        return self.how(loss, found)


@pytest.mark.parametrize(
    "how, rest",
    [
        (lambda loss, y: loss, lambda r: r == ()),
        (lambda loss, y: (loss, y), lambda r: r.shape == (5, 3)),
        (lambda loss, y: (loss, y, {"more": y[:1]}), lambda r: r[1]["more"].shape == (1, 3)),
        (lambda loss, y: {"y": y, "loss": loss}, lambda r: r["y"].shape == (5, 3)),
    ],
)
def test_a_model_that_gives_its_loss(how, rest):
    net = WithLoss(how)
    trainer = steep.trainer(net, None, torch.optim.SGD(net.parameters(), 0.1))
    x, y = batch()
    for call in (trainer.evaluate, trainer.step):
        loss, more = call(x, y)
        assert rest(more)
    assert trainer.step(x, y)[0] < loss


def test_buffers_are_in_checkpoints(tmp_path):
    data = [batch() for _ in range(4)]
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        net = Net()
        runs.append((net, steep.trainer(net, nn.MSELoss(), torch.optim.Adam(net.parameters()))))
    (net, trainer), (other, again) = runs
    for x, y in data[:2]:
        trainer.step(x, y)
    trainer.save_checkpoint(tmp_path / "run")
    again.compile(*data[0])
    assert other.calls == 0
    again.load_checkpoint(tmp_path / "run")
    for x, y in data[2:]:
        assert trainer.step(x, y)[0] == again.step(x, y)[0]
    assert other.calls == 4
    assert torch.equal(net.average, other.average)


def test_what_a_criterion_gives_that_is_no_step_changes_nothing():
    net = Net()
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    x, y = batch()
    trainer.step(x, y)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(steep.DataError):
        trainer.step(x, y * float("nan"))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_threads_take_turns():
    net = Net()
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.01))
    data = batch()

    def work():
        for _ in range(10):
            trainer.step(*data)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert trainer.session.step_count == 30
    assert net.calls == 30

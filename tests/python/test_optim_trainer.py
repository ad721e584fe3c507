"""``steep.trainer`` follows its optimizer and the modes of the model as a loop of PyTorch does."""

import copy

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402

STEPS = 6


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8, bias=False)  # the norm would take it out
        self.norm = torch.nn.BatchNorm1d(8)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.norm(self.first(x))))


class Scaled(torch.nn.Module):
    """A criterion with a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, y, target):
        return ((y * self.scale - target) ** 2).mean()


def in_groups(net, kind, **settings):
    return kind(
        [
            {"params": net.first.parameters(), "lr": 0.02},
            {"params": [*net.norm.parameters(), *net.second.parameters()], "lr": 0.05},
        ],
        **settings,
    )


def batches():
    torch.manual_seed(1)
    return [(torch.randn(6, 4), torch.randn(6, 3)) for _ in range(STEPS)]


def assert_same(net, other):
    for (name, a), b in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def compare(make, change=lambda net, optimizer, step: None, criterion=torch.nn.MSELoss):
    """Train with and without Steep; ``make(net, criterion)`` gives optimizer and scheduler."""
    torch.manual_seed(0)
    nets = [Net()]
    nets.append(copy.deepcopy(nets[0]))
    criteria = [criterion(), criterion()]
    made = [make(net, c) for net, c in zip(nets, criteria, strict=True)]
    trainer = steep.trainer(nets[1], criteria[1], made[1][0], predictions=False)
    for t, (x, y) in enumerate(batches()):
        for net, (optimizer, _) in zip(nets, made, strict=True):
            change(net, optimizer, t)
        optimizer, scheduler = made[0]
        optimizer.zero_grad()
        loss = criteria[0](nets[0](x), y)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(trainer.step(x, y), loss.detach(), rtol=1e-4, atol=1e-5)
        for s in (scheduler, made[1][1]):
            if s is not None:
                s.step()
        assert_same(*nets)
        assert_same(*criteria)
    return trainer, nets[1]


SCHEDULES = {
    "from zero": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: t / 3),
    "each its own": lambda o: torch.optim.lr_scheduler.LambdaLR(
        o, [lambda t: 0.9**t, lambda t: 1 / (t + 1)]
    ),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=0.01),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, [0.05, 0.1], total_steps=STEPS + 1, cycle_momentum=False
    ),
}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_groups(name, kind):
    def make(net, criterion):
        optimizer = in_groups(net, kind)
        return optimizer, SCHEDULES[name](optimizer)

    compare(make)


def test_weight_decay_and_momentum_change():
    def change(net, optimizer, step):
        if step == 2:
            optimizer.param_groups[1]["weight_decay"] = 0.3
        if step == 4:
            for group in optimizer.param_groups:
                group["momentum"] = 0.5

    compare(lambda net, _: (in_groups(net, torch.optim.SGD, momentum=0.9), None), change)


def test_betas_change():
    def change(net, optimizer, step):
        if step == 3:
            optimizer.param_groups[0]["betas"] = (0.8, 0.99)

    compare(lambda net, _: (torch.optim.Adam(net.parameters(), lr=0.01), None), change)


def test_what_changes_at_every_step_is_refused():
    def make(net, criterion):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)

    with pytest.raises(steep.ModelError, match="cycle_momentum=False"):
        compare(make)


def test_frozen_and_thawed():
    def change(net, optimizer, step):
        net.first.weight.requires_grad_(step not in (2, 3))
        if step == 2:
            net.first.weight.grad = None

    compare(lambda net, _: (torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), None), change)


def test_a_parameter_that_joins_late():
    def change(net, optimizer, step):
        if step == 2:
            optimizer.add_param_group({"params": net.second.parameters(), "lr": 0.01})

    def sgd(net, criterion):
        return torch.optim.SGD([*net.first.parameters(), *net.norm.parameters()], 0.1), None

    def adam(net, criterion):
        return torch.optim.Adam(net.first.parameters(), 0.1), None

    compare(sgd, change)
    with pytest.raises(steep.ModelError, match="joins later"):
        compare(adam, change)


def test_modes_of_the_parts():
    def change(net, optimizer, step):
        net.norm.train(step < 2)
        if step == 4:
            net.eval()

    trainer, net = compare(lambda net, _: (torch.optim.SGD(net.parameters(), 0.1), None), change)
    assert not net.training
    net.train()
    net.norm.eval()
    trainer.evaluate(*batches()[0])
    assert net.training
    assert not net.norm.training
    trainer.compile(*batches()[0])
    assert [m.training for m in (net, net.first, net.norm)] == [True, True, False]


def test_parameters_of_the_criterion():
    def make(net, criterion):
        return torch.optim.SGD([*net.parameters(), *criterion.parameters()], 0.1), None

    compare(make, criterion=Scaled)


def test_evaluation_has_a_graph_of_its_own():
    class Moody(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x) if self.training else self.layer(x) * 2

    net = Moody()
    trainer = steep.trainer(net, torch.nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    x, y = batches()[0]
    trainer.step(x, y)
    loss, prediction = trainer.evaluate(x, y)
    torch.testing.assert_close(prediction, net.layer(x).detach() * 2)
    torch.testing.assert_close(loss, torch.nn.functional.mse_loss(prediction, y))
    trainer.step(x, y)
    torch.testing.assert_close(trainer.evaluate(x, y)[1], net.layer(x).detach() * 2)


def test_one_rate_for_several_groups_is_refused():
    net = Net()
    trainer = steep.trainer(net, torch.nn.MSELoss(), in_groups(net, torch.optim.SGD))
    with pytest.raises(steep.ModelError, match="several groups"):
        trainer.step(*batches()[0], lr=0.1)

"""``steep.trainer`` follows its optimizer and the modes of the model as a loop of PyTorch does."""

import copy
import functools
import io
import math
import sys

import pytest

torch = pytest.importorskip("torch")

import optimizer_kinds  # noqa: E402
from optimizer_kinds import OTHERS, STEPS, steps_of  # noqa: E402

import steep  # noqa: E402
import steep.trainers.base  # noqa: E402

real = steep.trainers.base.TrainingSession


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
    return optimizer_kinds.batches(STEPS)


def assert_same(net, other):
    for (name, a), b in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_state(optimizers):
    """The states of PyTorch's optimizer and of the trainer's hold the same."""
    states = [o.state_dict()["state"] for o in optimizers]
    assert states[0].keys() == states[1].keys()
    for i, expected in states[0].items():
        assert expected.keys() == states[1][i].keys()
        for kind, tensor in expected.items():
            torch.testing.assert_close(states[1][i][kind], tensor, rtol=1e-4, atol=1e-5)


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
        assert_same_state([o for o, _ in made])
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


def test_what_is_compiled_in_and_changes_at_every_step_is_refused():
    def change(net, optimizer, step):
        net.first.weight.requires_grad_(step % 2 == 0)

    with pytest.raises(steep.ModelError, match="ORTModule"):
        compare(lambda net, _: (torch.optim.SGD(net.parameters(), 0.1), None), change)


ONE_CYCLE = {
    "SGD": lambda net: in_groups(net, torch.optim.SGD, momentum=0.9, weight_decay=0.01),
    "Nesterov": lambda net: in_groups(net, torch.optim.SGD, momentum=0.9, nesterov=True),
    "Adam": lambda net: in_groups(net, torch.optim.Adam, weight_decay=0.1),
    "AdamW": lambda net: in_groups(net, torch.optim.AdamW),
}


@pytest.mark.parametrize("name", ONE_CYCLE)
def test_one_cycle_with_momentum_needs_one_program(name, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "STEPS", 20)
    seen = set()

    def make(net, criterion):
        optimizer = ONE_CYCLE[name](net)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(
            optimizer, [0.05, 0.1], total_steps=STEPS + 1
        )

    def change(net, optimizer, step):
        for group in optimizer.param_groups:  # and what no schedule of PyTorch's moves
            group["weight_decay"] = 0.01 * step
        seen.add(optimizer.param_groups[0].get("momentum") or optimizer.param_groups[0]["betas"])

    built = []

    def build(*args, **options):
        built.append(real(*args, **options))
        return built[-1]

    monkeypatch.setattr(steep.trainers.base, "TrainingSession", build)
    compare(make, change)
    assert len(built) == 1
    assert len(seen) == STEPS


SCHEDULED = {
    **{"betas": lambda t: (0.9 - 0.02 * t, 0.95 - 0.02 * t), "momentum": lambda t: 0.5 - 0.05 * t},
    **{"weight_decay": lambda t: 0.01 * t, "eps": lambda t: 1e-4 * (t + 1)},
    **{"momentum_decay": lambda t: 0.1 * t, "lr_decay": lambda t: 0.1 * t},
    **{"rho": lambda t: 0.9 - 0.05 * t, "alpha": lambda t: 0.9 - 0.05 * t},
    **{"beta2_decay": lambda t: 0.05 * t - 0.8, "d": lambda t: 1 + 0.1 * t},
}


def other(name, net):
    return in_groups(net, getattr(torch.optim, name.split()[0]), **OTHERS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_numbers_of_each_kind_are_fed(name, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "STEPS", 10)
    sessions = []

    def build(*args, **options):
        sessions.append(real(*args, **options))
        return sessions[-1]

    def change(net, optimizer, step):
        group = optimizer.param_groups[step % 2]
        group["lr"] = 0.05 / (step + 1)
        for key, value in SCHEDULED.items():
            if key in group and (key != "momentum" or group[key]):
                pair = isinstance(group[key], tuple) and key == "eps"
                group[key] = (value(step), 0.01 * (step + 1)) if pair else value(step)

    monkeypatch.setattr(steep.trainers.base, "TrainingSession", build)
    compare(lambda net, _: (other(name, net), None), change)
    assert len(sessions) == 1


def test_momentum_from_zero_begins_with_a_whole_gradient():
    def change(net, optimizer, step):
        for group in optimizer.param_groups:
            group["momentum"] = 0.0 if step < 2 else 0.9

    compare(lambda net, _: (in_groups(net, torch.optim.SGD, dampening=0.5), None), change)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_frozen_and_thawed(kind):
    def change(net, optimizer, step):
        net.first.weight.requires_grad_(step not in (2, 3))
        if step == 2:
            net.first.weight.grad = None

    more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    compare(lambda net, _: (kind(net.parameters(), 0.1, **more), None), change)


def test_a_parameter_that_joins_late():
    def change(net, optimizer, step):
        if step == 2:
            optimizer.add_param_group({"params": net.second.parameters(), "lr": 0.01})

    def sgd(net, criterion):
        return torch.optim.SGD([*net.first.parameters(), *net.norm.parameters()], 0.1), None

    def adam(net, criterion):
        return torch.optim.Adam(net.first.parameters(), 0.1), None

    compare(sgd, change)
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
    with pytest.raises(steep.ModelError, match="several parameter groups"):
        trainer.step(*batches()[0], lr=0.1)


KINDS = {
    "SGD": lambda net: in_groups(net, torch.optim.SGD, momentum=0.9, dampening=0.3),
    "AdamW": lambda net: in_groups(net, torch.optim.AdamW, weight_decay=0.1),
    **{name: functools.partial(other, name) for name in OTHERS},
}


def trainer_of(net, optimizer):
    return steep.trainer(net, torch.nn.MSELoss(), optimizer, predictions=False)


@pytest.mark.matrix
@pytest.mark.parametrize("first", ["PyTorch", "Steep"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_state_dict_goes_both_ways(name, first, begun):
    """Half of the steps by one, a checkpoint of the user's, the rest by the other."""
    torch.manual_seed(0)
    nets = [Net()]
    nets += [copy.deepcopy(nets[0]) for _ in range(2)]
    whole, *halves = (KINDS[name](net) for net in nets)
    step = steps_of(nets[0], whole)
    ways = [steps_of, lambda *a: trainer_of(*a).step]
    if first == "Steep":
        ways.reverse()
    steps = [way(net, half) for way, net, half in zip(ways, nets[1:], halves, strict=True)]
    data = batches()
    if begun:  # what is loaded replaces what was there
        steps[1](*data[0])
    for i, batch in enumerate(data):
        if i == STEPS // 2:
            file = io.BytesIO()
            torch.save((nets[1].state_dict(), halves[0].state_dict()), file)
            file.seek(0)
            weights, state = torch.load(file, weights_only=True)
            nets[2].load_state_dict(weights)
            halves[1].load_state_dict(state)
        step(*batch)
        steps[i >= STEPS // 2](*batch)
    assert_same(nets[0], nets[2])
    assert_same_state([whole, halves[1]])


def test_state_is_shared_and_can_be_replaced():
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)
    optimizer, other = (torch.optim.Adam(n.parameters(), 0.1) for n in (net, twin))
    trainer, step = trainer_of(net, optimizer), steps_of(twin, other)
    data = batches()
    trainer.compile(*data[0])
    assert not optimizer.state
    trainer.step(*data[0])
    step(*data[0])
    weight = net.second.weight
    moment = optimizer.state[weight]["exp_avg"]
    before = moment.clone()
    trainer.step(*data[1])
    step(*data[1])
    assert optimizer.state[weight]["exp_avg"] is moment
    assert not torch.equal(moment, before)
    moment.zero_()  # in place
    other.state[twin.second.weight]["exp_avg"].zero_()
    optimizer.state[net.norm.bias]["exp_avg_sq"] = torch.ones(8)  # another
    other.state[twin.norm.bias]["exp_avg_sq"] = torch.ones(8)
    del optimizer.state[net.first.weight], other.state[twin.first.weight]
    for batch in data[2:]:
        trainer.step(*batch)
        step(*batch)
        assert_same(net, twin)
        assert_same_state([other, optimizer])
    optimizer.step()  # PyTorch's own, on no gradients: nothing
    assert_same_state([other, optimizer])
    optimizer.state.clear()
    saved = trainer.state_dict()
    assert not saved["optimizer/exp_avg/second.weight"].any()
    assert saved["optimizer/step/second.weight"] == 0


def test_state_that_does_not_fit_is_refused():
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    trainer = trainer_of(net, optimizer)
    batch = batches()[0]
    trainer.step(*batch)
    own = optimizer.state[net.norm.bias].pop("exp_avg")
    with pytest.raises(steep.DataError, match="exp_avg"):
        trainer.step(*batch)
    optimizer.state[net.norm.bias]["exp_avg"] = torch.zeros(3)
    with pytest.raises(steep.ShapeError, match=r"\[8\]"):
        trainer.step(*batch)
    optimizer.state[net.norm.bias]["exp_avg"] = own
    trainer.step(*batch)


def test_checkpoints_of_the_trainer_fill_the_state(tmp_path):
    torch.manual_seed(0)
    net = Net()
    data = batches()
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    trainer = trainer_of(net, optimizer)
    for batch in data[:3]:
        trainer.step(*batch)
    trainer.save_checkpoint(tmp_path / "run")
    state = trainer.state_dict()
    others = []
    for way in ("folder", "dict", "dict of one count"):
        twin = copy.deepcopy(net)
        other = torch.optim.Adam(twin.parameters(), 0.1)
        again = trainer_of(twin, other)
        again.compile(*data[0])
        if way == "folder":
            again.load_checkpoint(tmp_path / "run")
        else:
            one = {k: v for k, v in state.items() if not k.startswith("optimizer/step/")}
            again.load_state_dict(state if way == "dict" else one)
        assert_same_state([optimizer, other])
        others.append((twin, other, again))
    for batch in data[3:]:
        trainer.step(*batch)
        for twin, other, again in others:
            again.step(*batch)
            assert_same(net, twin)
            assert_same_state([optimizer, other])


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_on_the_optimizers_step_are_refused(when):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    trainer = trainer_of(net, optimizer)
    trainer.step(*batches()[0])
    hook = getattr(optimizer, f"register_step_{when}_hook")(lambda *_: None)
    with pytest.raises(steep.ModelError, match="hooks"):
        trainer.step(*batches()[0])
    hook.remove()
    trainer.step(*batches()[0])


@pytest.mark.parametrize("count", [-5.0, math.nan, math.inf, 1.5])
def test_a_state_whose_counts_are_none_is_refused(count):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    trainer = trainer_of(net, optimizer)
    trainer.step(*batches()[0])
    before = copy.deepcopy(net.state_dict())
    for key in ("optimizer/step", "optimizer/step/second.bias"):
        state = trainer.state_dict()
        state = {k: v + 1 if k in before else v for k, v in state.items()}
        with pytest.raises(steep.DataError, match="count of steps"):
            trainer.load_state_dict(state | {key: torch.tensor(count)})
    state = optimizer.state_dict()
    state["state"][3]["step"] = torch.tensor(count)
    optimizer.load_state_dict(state)
    with pytest.raises(steep.DataError, match="count of steps"):
        trainer.step(*batches()[1])
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_parameter_that_groups_have_twice_is_refused():
    net = Net()
    optimizer = in_groups(net, torch.optim.SGD, lr=0.1)
    trainer = trainer_of(net, optimizer)
    trainer.step(*batches()[0])
    optimizer.param_groups[0]["params"].append(net.second.bias)  # which add_param_group would not
    for act in (lambda: trainer.step(*batches()[1]), lambda: trainer_of(net, optimizer)):
        with pytest.raises(steep.ModelError, match=r"(?s) second\.bias.*param_groups 0 and 1"):
            act()

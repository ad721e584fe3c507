"""What a trainer's parameters may be: steps write them where they lie, and show no gradients."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import steep  # noqa: E402


class Deep(nn.Module):
    """Of three layers, so that the second one's weight has a part in backward."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Aside(nn.Module):
    """With a parameter beside a layer, which counts in one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.aside, self.how = nn.Linear(4, 4), nn.Linear(4, 4), how

    def forward(self, x):
        return self.how(self.layer(x), self.aside(x))


def twins(make):
    torch.manual_seed(0)
    net = make()
    return net, copy.deepcopy(net)


def compare(make, loss_of, kind=torch.optim.AdamW, steps=3, exact=1e-5):
    net, twin = twins(make)
    optimizers = [kind(n.parameters(), 0.1, weight_decay=0.1) for n in (net, twin)]
    trainer = steep.trainer(net, loss_of, optimizers[0])
    kind = next(net.parameters()).dtype
    for _ in range(steps):
        x, y = torch.randn(5, 4, dtype=kind), torch.randn(5, 4, dtype=kind)
        loss, _ = trainer.step(x, y)
        optimizers[1].zero_grad()
        expected = loss_of(twin(x), y)
        expected.backward()
        optimizers[1].step()
        torch.testing.assert_close(loss, expected.detach(), rtol=exact, atol=exact)
        torch.testing.assert_close(net.state_dict(), twin.state_dict(), rtol=exact, atol=exact)
    states = [o.state_dict()["state"] for o in optimizers]
    assert states[0].keys() == states[1].keys()


def tied(net):
    net.third.weight.data = net.second.weight.data


def turned(net):
    net.third.weight.data = net.second.weight.data.t()


def kept(net):
    net.register_buffer("kept", net.second.weight.data)
    net.register_forward_hook(lambda net, given, y: y @ net.kept)


@pytest.mark.parametrize("change", [tied, turned, kept])
@pytest.mark.parametrize("late", [False, True])
def test_memory_that_is_shared_is_refused(change, late):
    net = Deep()
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    batch = torch.randn(5, 4), torch.randn(5, 4)
    if late:
        trainer.step(*batch)
    change(net)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(steep.ModelError, match=r"shares its memory.*\n.*(second|third)\.weight"):
        trainer.step(*batch)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())


def test_parts_of_one_memory_are_none_of_each_other():
    def make():
        net = Deep()
        flat = torch.cat([p.detach().flatten() for p in net.parameters()])
        parts = flat.split([p.numel() for p in net.parameters()])
        for p, part in zip(net.parameters(), parts, strict=True):
            p.data = part.view_as(p)
        net.second.weight.data = net.second.weight.data.clone().t()  # moves, alone
        return net

    compare(make, nn.MSELoss())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_gradients_are_refused(register, late):
    net = Deep()
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    batch = torch.randn(5, 4), torch.randn(5, 4)
    if late:
        trainer.step(*batch)
    handle = getattr(net.second.weight, register)(lambda _: None)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(steep.ModelError, match="hook on its gradient"):
        trainer.step(*batch)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    handle.remove()
    trainer.step(*batch)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_what_no_gradient_reaches_does_not_decay(kind):
    compare(lambda: Aside(lambda y, z: y + z.detach()), nn.MSELoss(), kind)
    compare(lambda: Aside(lambda y, z: y + (z > 0)), nn.MSELoss(), kind)
    compare(lambda: Aside(lambda y, z: (y, z)), lambda y, t: nn.functional.mse_loss(y[0], t), kind)


@pytest.mark.parametrize("how", [lambda y, z: y + z.round(), lambda y, z: y + z.sign()])
def test_gradients_of_zero_are_refused(how):
    net = Aside(how)
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.AdamW(net.parameters()))
    with pytest.raises(steep.ModelError, match=r"always zero.*\n.*aside\.bias"):
        trainer.step(torch.randn(5, 4), torch.randn(5, 4))


def test_gradients_of_zero_from_a_product():
    compare(lambda: Aside(lambda y, z: y + z * 0), nn.MSELoss())


def test_a_loss_is_as_exact_as_it_is_in_pytorch():
    compare(lambda: Deep().double(), nn.MSELoss(), exact=1e-12)
    compare(Deep, lambda y, t: nn.functional.mse_loss(y, t).reshape(1, 1))


def test_a_parameter_of_the_optimizer_that_no_module_registers_is_refused():
    net, scale = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*net.parameters(), scale], 0.1)
    trainer = steep.trainer(net, lambda out, y: nn.functional.mse_loss(out * scale, y), optimizer)
    with pytest.raises(steep.ModelError, match="no module registers"):
        trainer.step(torch.ones(2, 4), torch.ones(2, 4))
    frozen = scale.requires_grad_(False)
    loss, _ = trainer.step(torch.ones(2, 4), torch.ones(2, 4))
    assert torch.isfinite(loss) and frozen == 1


@pytest.mark.parametrize("accumulates", [False, True])
def test_a_backward_that_needs_the_weights_of_before_a_step_is_an_error(accumulates):
    net = Deep()
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    x, y = torch.ones(2, 4), torch.ones(2, 4)
    trainer.compile(x, y)
    loss = net(x).sum()
    trainer.step(x, y, accumulate=accumulates)
    if accumulates:
        loss.backward(retain_graph=True)  # no weight has changed
        trainer.apply_gradients()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autocast_around_a_step_is_no_precision():
    net = nn.Linear(4, 4)
    trainer = steep.trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    x = torch.ones(2, 4)
    for call in (trainer.step, trainer.evaluate):
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(steep.ModelError, match="bf16"):
            call(x, x)
    trainer = steep.trainer(
        net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1), precision="bf16"
    )
    with torch.autocast("cpu", torch.bfloat16):
        trainer.step(x, x)


def test_a_step_of_the_optimizer_that_was_replaced_is_refused():
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 1) for _ in range(2)]
    trainer = steep.trainer(net, nn.MSELoss(), optimizer)
    trainer.step(torch.ones(2, 4), torch.ones(2, 4))
    assert schedules[0].optimizer is optimizer
    former = optimizer.step
    optimizer.step = lambda closure=None: former(closure)
    with pytest.raises(steep.ModelError, match="was replaced"):
        trainer.step(torch.ones(2, 4), torch.ones(2, 4))


@pytest.mark.parametrize("lr", ["fast", -1.0, float("nan"), 1e39])
def test_a_rate_that_is_refused_changes_nothing(lr):
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    trainer = steep.trainer(net, nn.MSELoss(), optimizer)
    with pytest.raises(steep.DataError, match="rate"):
        trainer.step(torch.ones(2, 4), torch.ones(2, 4), lr=lr)
    trainer.step(torch.ones(2, 4), torch.ones(2, 4))
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_trainer_needs_a_module():
    with pytest.raises(TypeError, match="not a NoneType"):
        steep.trainer(None, nn.MSELoss(), torch.optim.SGD([torch.ones(1)], 0.1))


def test_a_wrapped_model_keeps_its_mode_after_evaluate():
    net = nn.Sequential(nn.Linear(4, 4))
    model = steep.ORTModule(net)
    trainer = steep.trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1))
    trainer.evaluate(torch.ones(2, 4), torch.ones(2, 4))
    assert net.training and net[0].training


def test_a_described_rate_is_one_number():
    described = steep.ModelDescription(
        [steep.IODescription(name, ["N", 4], torch.float32) for name in "xy"],
        [steep.IODescription("loss", [], torch.float32)],
    )
    rate = steep.IODescription("rate", [1], torch.float32)
    trainer = steep.ORTTrainer(
        nn.Linear(4, 4), nn.MSELoss(), described, "SGDOptimizer", None, rate, "cpu"
    )
    x = torch.ones(2, 4)
    for arguments in ((), (x, x, torch.ones(2)), (x, x, "fast")):
        with pytest.raises(steep.DataError):
            trainer.train_step(*arguments)


def test_weights_that_are_not_contiguous_stay_in_their_memory(tmp_path):
    net, twin = twins(lambda: nn.Conv2d(4, 3, 2).to(memory_format=torch.channels_last))
    views = [n.weight.detach().permute(0, 2, 3, 1) for n in (net, twin)]
    optimizers = [torch.optim.AdamW(n.parameters(), 0.1) for n in (net, twin)]
    trainer = steep.trainer(net, nn.MSELoss(), optimizers[0])
    x, y = torch.randn(4, 4, 3, 3), torch.randn(4, 3, 2, 2)
    for i in range(4):
        if i % 2:
            trainer.step(x, y)
        else:
            for rows in (slice(0, 2), slice(2, 4)):
                trainer.step(x[rows], y[rows], accumulate=True)
            trainer.apply_gradients()
        optimizers[1].zero_grad()
        nn.functional.mse_loss(twin(x), y).backward()
        optimizers[1].step()
        for n in (net, twin):
            n.weight.data.mul_(0.5)
        torch.testing.assert_close(*views, rtol=1e-4, atol=1e-5)
        assert net.weight.stride() == twin.weight.stride()
    trainer.save_checkpoint(tmp_path / "run")
    before = net.weight.detach().clone()
    trainer.step(x, y)
    trainer.load_checkpoint(tmp_path / "run")
    assert torch.equal(net.weight.detach(), before)
    assert torch.equal(views[0], before.permute(0, 2, 3, 1))

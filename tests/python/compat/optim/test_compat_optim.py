"""FusedAdam, FP16_Optimizer, configs, schedulers and scalers of ONNX Runtime Training."""

import copy
import math
import pickle
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep.compat import notices  # noqa: E402
from steep.compat.optim.configs import AdamConfig, LambConfig, SGDConfig  # noqa: E402
from steep.compat.optim.fp16_optimizer import FP16_Optimizer  # noqa: E402
from steep.compat.optim.fused_adam import AdamWMode, FusedAdam  # noqa: E402
from steep.compat.optim.loss_scalers import DynamicLossScaler, LossScaler  # noqa: E402
from steep.compat.optim.schedulers import (  # noqa: E402
    ConstantWarmupLRScheduler,
    CosineWarmupLRScheduler,
    LinearWarmupLRScheduler,
    PolyWarmupLRScheduler,
)

SHAPES = [(40, 24), (24,), (8, 3, 5), ()]


def parameters(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype).sign() + 0.5) for shape in SHAPES]


def ulps(given, expected):
    """The largest difference, in units of the expected value's last place."""
    given, expected = given.detach().double().reshape(-1), expected.detach().reshape(-1)
    spacing = torch.from_numpy(np.spacing(expected.abs().numpy()))
    return float(((given - expected.double()).abs() / spacing).max())


class TransformersAdamW:
    """What transformers' AdamW computes, by the same calls: it is not installed any longer.

    But for the square root: PyTorch has MKL's, which is one ulp off once in 150 times.
    """

    def __init__(self, params, lr, eps, weight_decay, bias_correction):
        self.params, self.lr, self.betas, self.eps = params, lr, (0.9, 0.999), eps
        self.decay, self.correct, self.count = weight_decay, bias_correction, 0
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    @torch.no_grad()
    def step(self):
        self.count += 1
        (a, b), size = self.betas, self.lr
        if self.correct:
            size = size * math.sqrt(1 - b**self.count) / (1 - a**self.count)
        for p, (m, v) in zip(self.params, self.moments, strict=True):
            m.mul_(a).add_(p.grad, alpha=1 - a)
            v.mul_(b).addcmul_(p.grad, p.grad, value=1 - b)
            root = torch.from_numpy(np.asarray(np.sqrt(v.numpy())))
            p.addcdiv_(m, root.add_(self.eps), value=-size)
            if self.decay > 0:
                p.add_(p, alpha=-self.lr * self.decay)


def reference(mode, params, lr, eps, decay, bias_correction):
    if mode == AdamWMode.ADAM_L2_REGULARIZATION:
        return torch.optim.Adam(params, lr=lr, eps=eps, weight_decay=decay, fused=True)
    if mode == AdamWMode.ADAMW_TORCH:
        return torch.optim.AdamW(params, lr=lr, eps=eps, weight_decay=decay, fused=True)
    return TransformersAdamW(params, lr, eps, decay, bias_correction)


CASES = [(mode, 1e-3, decay, True) for mode in AdamWMode for decay in (0.0, 0.01)]
CASES += [(AdamWMode.ADAMW_TRANSFORMERS, 1e-2, 0.1, False)]


@pytest.mark.parametrize(("mode", "lr", "decay", "correct"), CASES)
def test_each_mode_is_within_one_ulp(mode, lr, decay, correct):
    expected, given = parameters(), parameters()
    theirs = reference(mode, expected, lr, 1e-6, decay, correct)
    ours = FusedAdam(given, lr, correct, eps=1e-6, adam_w_mode=mode, weight_decay=decay)
    assert ours.defaults["lr"] == lr
    for _ in range(5):
        before = [p.detach().clone() for p in expected]
        with torch.no_grad():
            for p, q in zip(given, before, strict=True):
                p.copy_(q)  # each step by itself: roundings do not add up
        for p, q in zip(expected, given, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        theirs.step()
        ours.step()
        assert max(ulps(q, p) for p, q in zip(expected, given, strict=True)) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("mode", "lr", "decay", "correct"), CASES)
def test_weights_near_zero_are_within_one_ulp(mode, lr, decay, correct, dtype):
    """Where a step cancels a weight, another rounding in any moment would be many ulps of it.

    4096: of a tensor's last few elements, PyTorch's fused kernels round in another way.
    """
    torch.manual_seed(0)
    start = torch.randn(4096, dtype=dtype) * torch.logspace(-9, 2, 4096, dtype=dtype)
    expected, given = [torch.nn.Parameter(start.clone())], [torch.nn.Parameter(start.clone())]
    theirs = reference(mode, expected, lr, 1e-6, decay, correct)
    ours = FusedAdam(given, lr, correct, eps=1e-6, adam_w_mode=mode, weight_decay=decay)
    scales = torch.logspace(-6, 4, 4096, dtype=dtype)[torch.randperm(4096)]
    for _ in range(50):
        expected[0].grad = torch.randn(4096, dtype=dtype) * scales
        given[0].grad = expected[0].grad.clone()
        theirs.step()
        ours.step()
        assert ulps(given[0], expected[0]) <= 1


def test_moments_that_forget_soon_are_those_of_lerp():
    p, q = ([torch.nn.Parameter(torch.ones(4096))] for _ in range(2))
    ours = FusedAdam(p, 1e-3, betas=(0.3, 0.9), adam_w_mode=AdamWMode.ADAMW_TORCH)
    settings = {"lr": 1e-3, "betas": (0.3, 0.9), "eps": 1e-6, "weight_decay": 0.0}
    theirs = torch.optim.AdamW(q, fused=True, **settings)
    for _ in range(10):
        p[0].grad = torch.randn(4096)
        q[0].grad = p[0].grad.clone()
        ours.step()
        theirs.step()
        moment = ours.state[p[0]]["exp_avg"], theirs.state[q[0]]["exp_avg"]
        assert ulps(*moment) <= 1 and ulps(p[0], q[0]) <= 1


def test_defaults_are_those_that_users_know():
    optimizer = FusedAdam(parameters())
    group = optimizer.param_groups[0]
    assert (group["lr"], group["eps"], group["betas"]) == (1e-3, 1e-6, (0.9, 0.999))
    assert group["bias_correction"] and group["weight_decay"] == 0 and group["step"] == 0
    assert [int(mode) for mode in AdamWMode] == [0, 1, 2]
    for wrong in ({"lr": -1.0}, {"betas": (0.9, 1.0)}, {"adam_w_mode": 3}, {"eps": math.nan}):
        with pytest.raises(ValueError, match=r"must be|valid"):
            FusedAdam(parameters(), **wrong)


def quadratic(params, optimizer, steps, skip=()):
    for _ in range(steps):
        optimizer.zero_grad()
        sum(
            (p - 3).square().sum() * (i + 1) for i, p in enumerate(params) if i not in skip
        ).backward()
        optimizer.step()


def close(a, b, rtol=1e-5):
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=1e-6)


def adamw(params, **settings):
    return torch.optim.AdamW(params, lr=1e-2, eps=1e-6, weight_decay=0.0, **settings)


def fused(params, **settings):
    return FusedAdam(params, lr=1e-2, adam_w_mode=AdamWMode.ADAMW_TORCH, **settings)


def test_groups_schedulers_and_parameters_without_a_gradient():
    results = []
    for make in (adamw, fused):
        p = parameters()
        optimizer = make([{"params": p[:2]}, {"params": p[2:], "lr": 5e-2, "weight_decay": 0.1}])
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for _ in range(3):
            quadratic(p, optimizer, 1)
            schedule.step()
        quadratic(p, optimizer, 2, skip=(1,))  # another set of gradients, and back
        quadratic(p, optimizer, 2)
        results.append(p)
    close(*results)


def test_state_is_whole_and_counts_when_loaded():
    first, second = parameters(), parameters()
    whole = fused(first)
    quadratic(first, whole, 3)
    state = copy.deepcopy(whole.state_dict())
    assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert float(state["state"][0]["step"]) == state["param_groups"][0]["step"] == 3
    with torch.no_grad():
        for p, q in zip(second, first, strict=True):
            p.copy_(q)
    again = fused(second)
    again.load_state_dict(state)
    quadratic(first, whole, 2)
    quadratic(second, again, 2)
    for p, q in zip(first, second, strict=True):
        assert torch.equal(p, q)
    # PyTorch's own AdamW takes the state over as well
    third = [torch.nn.Parameter(p.detach().clone()) for p in first]
    theirs = adamw(third)
    theirs.load_state_dict(
        {**theirs.state_dict(), "state": copy.deepcopy(whole.state_dict())["state"]}
    )
    quadratic(first, whole, 2)
    quadratic(third, theirs, 2)
    close(first, third)


def test_one_call_updates_all():
    p = parameters()
    optimizer = fused(p)
    quadratic(p, optimizer, 1)
    update = optimizer._update
    assert update.session.dump().count("steep.Adam(") == len(p)
    addresses = [q.data_ptr() for q in p]
    quadratic(p, optimizer, 3)
    assert optimizer._update is update and [q.data_ptr() for q in p] == addresses
    assert steep._steep.registered_ops() == []


def test_copies_pickles_and_memory_formats():
    p = parameters()
    optimizer = fused(p)
    quadratic(p, optimizer, 2)
    again = pickle.loads(pickle.dumps(optimizer))
    copied = copy.deepcopy(optimizer)
    quadratic(p, optimizer, 2)
    for other in (again, copied):
        q = other.param_groups[0]["params"]
        quadratic(q, other, 2)
        close(p, q)
    image = torch.nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    plain = torch.nn.Parameter(image.detach().clone())
    quadratic([image], fused([image]), 2)
    quadratic([plain], adamw([plain]), 2)
    close([image], [plain])


def test_other_types():
    p, q = parameters(torch.float64), parameters(torch.float64)
    quadratic(p, fused(p), 3)
    quadratic(q, adamw(q), 3)
    close(p, q, rtol=1e-12)
    half = [torch.nn.Parameter(torch.zeros(3, dtype=torch.float16))]
    half[0].grad = torch.ones_like(half[0])
    with pytest.raises(steep.DataError, match="float32 or float64"):
        fused(half).step()
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        fused(table.parameters()).step()


@pytest.mark.parametrize("lr", [2.0, 3.0, 0.0])
def test_rates_that_leave_nothing_of_the_weights(lr):
    p = [torch.nn.Parameter(torch.ones(3))]
    q = [torch.nn.Parameter(torch.ones(3))]
    p[0].grad = q[0].grad = torch.ones(3)
    FusedAdam(p, lr=lr, weight_decay=0.5).step()
    TransformersAdamW(q, lr, 1e-6, 0.5, True).step()
    torch.testing.assert_close(p, q, rtol=0, atol=0)


def test_closures_and_gradient_scalers():
    p, q = parameters(), parameters()
    optimizer, theirs = fused(p), adamw(q)

    def closure():
        optimizer.zero_grad()
        loss = sum((x - 3).square().sum() * (i + 1) for i, x in enumerate(p))
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    quadratic(q, theirs, 1)
    close(p, q)
    assert optimizer.step() is None
    optimizer.zero_grad()
    assert p[0].grad is None
    assert FusedAdam(p).step() is None  # nothing has a gradient
    kept = fused(p, set_grad_none=False)
    quadratic(p, kept, 1)
    kept.zero_grad()
    assert torch.equal(p[0].grad, torch.zeros_like(p[0]))


# --- FP16_Optimizer ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [adamw, fused])
def test_scaled_steps_are_those_of_a_gradient_scaler(make):
    p, q = parameters(), parameters()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    theirs = adamw(p)
    window = DynamicLossScaler(loss_scale=2.0**10, up_scale_window=2)
    ours = FP16_Optimizer(make(q), loss_scaler=window, max_norm=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(ours, 2, gamma=0.5)
    theirs_schedule = torch.optim.lr_scheduler.StepLR(theirs, 2, gamma=0.5)
    for i in range(6):
        losses = [sum((x - 3).square().sum() for x in params) for params in (p, q)]
        if i == 3:
            losses = [loss * math.inf for loss in losses]
        theirs.zero_grad()
        scaler.scale(losses[0]).backward()
        scaler.unscale_(theirs)
        torch.nn.utils.clip_grad_norm_(p, 0.5)
        scaler.step(theirs)
        scaler.update()
        ours.zero_grad()
        ours.backward(losses[1])
        before = [x.detach().clone() for x in q]
        ours.step()
        assert ours.overflow == (i == 3)
        assert ours.loss_scale == scaler.get_scale()
        if ours.overflow:
            assert all(torch.equal(x, y) for x, y in zip(q, before, strict=True))
        schedule.step(), theirs_schedule.step()
    close(p, q)


def test_bias_correction_may_change_between_steps():
    p = parameters()
    ours = FusedAdam(p, lr=1e-2)
    theirs = TransformersAdamW([x.detach().clone() for x in p], 1e-2, 1e-6, 0, True)
    for correct in (True, False, True):
        ours.param_groups[0]["bias_correction"] = theirs.correct = correct
        for x, y in zip(p, theirs.params, strict=True):
            x.grad = torch.randn_like(x)
            y.grad = x.grad.clone()
        ours.step()
        theirs.step()
    assert ours.param_groups[0]["step"] == 3
    close(p, theirs.params)


def test_gradients_added_to_those_that_were_clipped_are_of_one_scale():
    (p,) = [torch.nn.Parameter(torch.ones(3))]
    ours = FP16_Optimizer(fused([p]), loss_scaler=DynamicLossScaler(loss_scale=64.0))
    for _ in range(2):  # no step, and none that drops gradients, between them
        ours.backward((2 * p).sum())
        ours.clip_master_grads(1e9)
    torch.testing.assert_close(p.grad, torch.full((3,), 4.0))
    ours.step()
    ours.backward((2 * p).sum())
    ours.step()
    torch.testing.assert_close(p.grad, torch.full((3,), 6.0))


def test_gradients_of_a_loss_that_was_not_scaled_are_left_as_they_are():
    p, q = parameters(), parameters()
    theirs = torch.optim.SGD(p, lr=0.1)
    ours = FP16_Optimizer(torch.optim.SGD(q, lr=0.1))
    for i in range(4):
        for params in (p, q):
            loss = sum((x - 3).square().sum() for x in params) * (math.nan if i == 1 else 1)
            ours.backward(loss) if params is q and i == 2 else loss.backward()
        if i != 1:
            theirs.step()
        ours.step()
        assert ours.overflow == (i == 1)
        for x in (*p, *q):
            x.grad = None  # by the model's zero_grad(), say
    close(p, q)


def test_scaled_optimizers_keep_their_state():
    p = parameters()
    ours = FP16_Optimizer(fused(p), loss_scaler=DynamicLossScaler(loss_scale=64.0))
    loss = sum((x - 3).square().sum() for x in p)
    ours.backward(loss)
    assert ours.clip_master_grads(1.0) == pytest.approx(
        float(torch.nn.utils.get_total_norm([2 * (x.detach() - 3) for x in p]))
    )
    ours.step()
    assert float(torch.nn.utils.get_total_norm([x.grad for x in p])) == pytest.approx(1.0)
    state = copy.deepcopy(ours.state_dict())
    again = FP16_Optimizer(fused(p))
    again.load_state_dict(state)
    assert again.loss_scale == 64.0 and again.state is again.optimizer.state
    assert torch.equal(again.state[p[0]]["exp_avg"], ours.state[p[0]]["exp_avg"])
    copied = copy.deepcopy(ours)
    assert copied.loss_scale == 64.0 and copied.state is copied.optimizer.state
    with pytest.raises(RuntimeError, match="closure"):
        ours.step(lambda: loss)
    p[0].grad = torch.full_like(p[0], math.nan)
    assert ours.clip_master_grads(1.0) == -1.0


def test_optimizers_that_scale_by_themselves_are_left_alone(caplog):
    notices.forget()
    theirs = type("DeepSpeedZeroOptimizer", (), {"__module__": "deepspeed.runtime.zero"})()
    assert FP16_Optimizer(theirs) is theirs is FP16_Optimizer(theirs)
    apex = torch.optim.SGD(parameters(), lr=0.1)
    prepared = type("AcceleratedOptimizer", (type(apex),), {"__module__": "accelerate.optimizer"})
    accelerated = prepared(parameters(), lr=0.1)
    assert FP16_Optimizer(accelerated) is accelerated
    apex._amp_stash = types.SimpleNamespace()
    assert FP16_Optimizer(apex) is apex
    assert [r.message.split("(")[0] for r in caplog.records] == ["FP16_Optimizer"] * 3
    with pytest.raises(TypeError, match="Linear"):
        FP16_Optimizer(torch.nn.Linear(2, 2))
    notices.forget()


# --- configs, schedulers, scalers ----------------------------------------------------------------


def test_configs():
    adam = AdamConfig([{"params": ["a"], "lambda_coef": 0.1}], lr=0.01, epsilon=1e-7)
    assert adam.name == "AdamOptimizer" and adam.lr == 0.01 and adam.names() == {"a"}
    options = adam.options(group=adam.params[0])
    assert (options.kind, options.weight_decay, options.epsilon) == ("adamw", 0.1, 1e-7)
    assert adam.options(0.5).lr == 0.5 and adam.options().weight_decay == 0
    assert adam.max_norm_clip == 1 and SGDConfig().max_norm_clip == math.inf
    lamb = LambConfig()
    assert lamb.options().kind == "lamb" and not lamb.options().bias_correction
    assert lamb.options().epsilon == 1e-6 and SGDConfig(lr=0.1).options().lr == 0.1
    for wrong in (
        lambda: SGDConfig([{"params": ["a"]}]),
        lambda: AdamConfig(lr=-1.0),
        lambda: AdamConfig([{"params": ["a"], "lr": 0.1}]),
        lambda: AdamConfig([{"params": ["a"], "gamma": 0.1}]),
        lambda: AdamConfig([{"alpha": 0.1}]),
        lambda: AdamConfig({"params": ["a"]}),
        lambda: AdamConfig(
            lambda_coef=0.1, weight_decay_mode=AdamConfig.DecayMode.AFTER_WEIGHT_UPDATE
        ),
        lambda: LambConfig(ratio_max=10.0),
    ):
        with pytest.raises(steep.DataError):
            wrong()


def rates(schedule, steps, lr=2.0):
    config = SGDConfig(lr=lr)
    info = [types.SimpleNamespace(optimizer_config=config, optimization_step=i) for i in steps]
    return [schedule._step(i)[0] for i in info]


def test_schedulers():
    total = 10
    warm = [0.0, 0.4, 0.8, 1.2, 1.6]
    steps = range(11)
    for schedule, rest in (
        (ConstantWarmupLRScheduler(total, 0.5), [2.0] * 6),
        (LinearWarmupLRScheduler(total, 0.5), [2.0, 1.6, 1.2, 0.8, 0.4, 0.0]),
        (
            CosineWarmupLRScheduler(total, warmup=0.5),
            [1 + math.cos(math.pi * k / 5) for k in range(6)],
        ),
        (
            PolyWarmupLRScheduler(total, lr_end=0.5, power=2.0, warmup=0.5),
            [0.5 + 1.5 * (1 - k / 5) ** 2 for k in range(6)],
        ),
    ):
        assert schedule.get_last_lr() == []
        assert rates(schedule, steps) == pytest.approx(warm + rest)
        assert schedule.get_last_lr() == [pytest.approx(rest[-1])]
    assert rates(PolyWarmupLRScheduler(10, lr_end=0.5), [12]) == [0.5]
    for wrong in (
        lambda: LinearWarmupLRScheduler(0),
        lambda: LinearWarmupLRScheduler(10, 1.0),
        lambda: CosineWarmupLRScheduler(10, cycles=0.0),
        lambda: PolyWarmupLRScheduler(10, lr_end=-1.0),
        lambda: rates(PolyWarmupLRScheduler(10, lr_end=3.0), [5]),
    ):
        with pytest.raises(ValueError, match="must"):
            wrong()


def test_loss_scalers():
    finite, not_finite = (types.SimpleNamespace(all_finite=f) for f in (True, False))
    fixed = LossScaler(8.0)
    assert fixed.update(not_finite) == 8.0
    scaler = DynamicLossScaler(
        loss_scale=8.0, up_scale_window=2, min_loss_scale=4.0, max_loss_scale=16.0
    )
    said = [scaler.update(i) for i in (finite, finite, finite, finite, not_finite, not_finite)]
    assert said == [8.0, 16.0, 16.0, 16.0, 8.0, 4.0]
    assert scaler.update(not_finite) == 4.0
    scaler.reset()
    assert scaler.loss_scale == 8.0
    assert DynamicLossScaler(automatic_update=False).update(not_finite) == 2.0**16
    with pytest.raises(ValueError, match="min_loss_scale"):
        DynamicLossScaler(loss_scale=0.5)
    with pytest.raises(ValueError, match="window"):
        DynamicLossScaler(up_scale_window=0)


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("exp_avg", -1.0, True),
        ("exp_avg", math.nan, False),
        ("exp_avg", math.inf, False),
        ("exp_avg_sq", -1.0, False),
        ("exp_avg_sq", math.nan, False),
        ("exp_avg_sq", 0.0, True),
    ],
)
def test_fused_adam_refuses_moments_that_are_not_valid(name, value, valid):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = FusedAdam([weight], lr=0.1)
    weight.grad = torch.ones(3)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0][name][1] = value
    if valid:
        optimizer.load_state_dict(state)
        return
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(steep.DataError, match="not valid") as error:
        optimizer.load_state_dict(state)
    assert error.value.node == f"{name} of parameter 0"
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"])

"""ORTTrainer with a described model, against loops of PyTorch."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep.compat import notices  # noqa: E402
from steep.compat.optim.configs import AdamConfig, LambConfig, SGDConfig  # noqa: E402
from steep.compat.optim.loss_scalers import DynamicLossScaler  # noqa: E402
from steep.compat.optim.schedulers import LinearWarmupLRScheduler  # noqa: E402
from steep.compat.trainer.described_trainer import ORTTrainer  # noqa: E402
from steep.compat.trainer.options import ORTTrainerOptions  # noqa: E402

LOSS = torch.nn.MSELoss()
DESCRIPTION = {
    "inputs": [("x", ["n", 4]), ("y", ["n", 2])],
    "outputs": [("loss", [], True), ("out", ["n", 2])],
}


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def batches(count):
    torch.manual_seed(1)
    return [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(count)]


def trainer(config, model=None, **options):
    return ORTTrainer(model or net(), DESCRIPTION, config, LOSS, ORTTrainerOptions(options))


def assert_same(model, other, rtol=1e-4):
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=1e-6)


def test_steps_are_those_of_a_loop_with_clipping_schedule_and_groups():
    decayed = ["0.weight", "2.weight"]
    config = AdamConfig([{"params": decayed, "lambda_coef": 0.1}], lr=0.05, max_norm_clip=0.5)
    schedule = LinearWarmupLRScheduler(10, 0.3)
    ours = trainer(config, lr_scheduler=schedule)
    model = net()
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for n, p in named.items() if n in decayed], "weight_decay": 0.1},
        {"params": [p for n, p in named.items() if n not in decayed], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=0.05)
    for i, (x, y) in enumerate(batches(6)):
        rate = 0.05 * (i / 3 if i < 3 else 1 - (i - 3) / 7)
        for group in theirs.param_groups:
            group["lr"] = rate
        out = model(x)
        loss = LOSS(out, y)
        theirs.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        theirs.step()
        given = ours.train_step(x, y=y)
        torch.testing.assert_close(given[0], loss.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(given[1], out.detach(), rtol=1e-4, atol=1e-6)
        assert schedule.get_last_lr() == [pytest.approx(rate)]
    assert_same(ours.model, model)
    assert ours._train_step_info.optimization_step == 6


def test_accumulation_is_the_step_of_the_whole_batch():
    ours = trainer(SGDConfig(lr=0.1), batch={"gradient_accumulation_steps": 2})
    model = net()
    data = batches(4)
    for x, y in data:
        ours.train_step(x, y)
    theirs = torch.optim.SGD(model.parameters(), lr=0.1)
    for first, second in (data[:2], data[2:]):
        theirs.zero_grad()
        x, y = (torch.cat(pair) for pair in zip(first, second, strict=True))
        LOSS(model(x), y).backward()
        theirs.step()
    assert_same(ours.model, model)
    assert ours._train_step_info.step == 4 and ours._train_step_info.optimization_step == 2


def test_mixed_precision_skips_a_step_that_overflows():
    scaler = DynamicLossScaler(loss_scale=2.0**10)
    model = net()
    ours = trainer(SGDConfig(lr=0.1), mixed_precision={"enabled": True, "loss_scaler": scaler})
    ((x, y),) = batches(1)
    ours.train_step(x, y)
    loss = LOSS(model(x), y)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert_same(ours.model, model, rtol=2e-2)
    before = copy.deepcopy(ours.model)
    ours.train_step(x, y * math.inf)
    assert_same(ours.model, before, rtol=0)
    assert scaler.loss_scale == 2.0**9 and not ours._train_step_info.all_finite


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    data = batches(5)
    config = LambConfig(lr=0.01)
    whole = trainer(config)
    for x, y in data[:3]:
        whole.train_step(x, y)
    whole.save_checkpoint(tmp_path / "c", {"epoch": 2})
    with pytest.raises(steep.CheckpointError, match="already"):
        whole.save_checkpoint(tmp_path / "c")
    again = trainer(config, torch.nn.Sequential(*(copy.deepcopy(m) for m in net())))
    torch.save({"state": {}}, tmp_path / "other")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "cut").write_bytes((tmp_path / "c").read_bytes()[:-100])
    for bad in (*(tmp_path / name for name in ("other", "empty", "text", "cut")), "/dev/zero"):
        with pytest.raises(steep.CheckpointError, match=str(bad)):
            again.load_checkpoint(bad)
    assert again.load_checkpoint(tmp_path / "c") == {"epoch": 2}
    for x, y in data[3:]:
        whole.train_step(x, y), again.train_step(x, y)
    assert_same(whole.model, again.model, rtol=0)
    assert set(whole.state_dict(pytorch_format=True)) == set(whole.model.state_dict())
    whole.save_checkpoint(tmp_path / "w", include_optimizer_states=False)
    assert torch.load(tmp_path / "w")["state"]["optimizer"] == {}


class ReturnsItsLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(4, 2), torch.nn.Dropout(0.5)

    def forward(self, x, y):
        out = self.dropout(self.layer(x))
        return out, LOSS(out, y)


def test_a_model_that_returns_its_loss(tmp_path):
    description = {
        "inputs": DESCRIPTION["inputs"],
        "outputs": [("out", ["n", 2]), ("loss", [], True)],
    }
    model = ReturnsItsLoss()
    frozen = model.layer.bias.detach().clone()
    options = ORTTrainerOptions({"utils": {"frozen_weights": ["layer.bias"]}})
    ours = ORTTrainer(model, description, SGDConfig(lr=0.1), options=options)
    ((x, y),) = batches(1)
    losses = [float(ours.train_step(x, y)[1]) for _ in range(3)]
    assert len(set(losses)) == 3 and torch.equal(model.layer.bias, frozen)
    out, loss = ours.eval_step(x, y)
    torch.testing.assert_close(out, model.layer(x).detach())
    torch.testing.assert_close(loss, LOSS(out, y))
    ours.save_as_onnx(tmp_path / "m.onnx", x, y)
    given = steep.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x.numpy(), "y": y.numpy()})
    torch.testing.assert_close(torch.from_numpy(given[0]), out)


def test_what_is_wrong_is_said():
    outputs, inputs = DESCRIPTION["outputs"], DESCRIPTION["inputs"]
    for wrong in (
        {"inputs": inputs},
        {"inputs": [], "outputs": outputs},
        {"inputs": [("x",)], "outputs": outputs},
        {"inputs": [("x", [1.5])], "outputs": outputs},
        {"inputs": inputs, "outputs": [("out", [])]},
    ):
        with pytest.raises(ValueError, match="Invalid model_desc"):
            ORTTrainer(net(), wrong, SGDConfig(), LOSS)
    for options in (
        {"batches": {}},
        {"batch": {"steps": 2}},
        {"batch": {"gradient_accumulation_steps": 0}},
        {"batch": 2},
        {"device": {"id": "cuda"}},
        {"distributed": {"world_size": 2}},
        {"distributed": {"pipeline_parallel": {"stages": 2}}},
        {"lr_scheduler": 0.1},
    ):
        with pytest.raises(steep.DataError, match="option"):
            ORTTrainerOptions(options)
    with pytest.raises(steep.DataError, match="no such parameter"):
        trainer(AdamConfig([{"params": ["head.weight"]}]))
    for groups in ([["out.bias"], ["out.bias"]], [["out.bias", "out.bias"]]):
        with pytest.raises(steep.DataError, match="two groups"):
            AdamConfig([{"params": names} for names in groups])
    for several in ((), ("a", "b")):
        with pytest.raises(steep.DataError, match="one process"):
            trainer(SGDConfig()).load_checkpoint(*several)
    ((x, y),) = batches(1)
    with pytest.raises(steep.DataError, match="model_desc"):
        trainer(SGDConfig()).train_step(x)
    with pytest.raises(steep.DataError, match="model_desc"):
        trainer(SGDConfig()).train_step(x, x=y)


@pytest.mark.parametrize("count", [-5, math.nan, math.inf, 1.5])
def test_a_state_whose_counts_are_none_is_refused(count):
    ours = trainer(AdamConfig(lr=0.1))
    for x, y in batches(2):
        ours.train_step(x, y)
    before = {k: v.clone() for k, v in ours.state_dict()["model"].items()}
    for section in ("train_step_info", "optimizer"):
        state = ours.state_dict()
        key = next(k for k in state[section] if k.startswith("step"))
        state[section] = {**state[section], key: torch.tensor(count)}
        state["model"] = {k: v + 1 for k, v in state["model"].items()}
        with pytest.raises(steep.DataError, match="count of steps"):
            ours.load_state_dict(state)
    assert all(torch.equal(v, before[k]) for k, v in ours.state_dict()["model"].items())


def test_a_state_with_some_moments_of_a_parameter_is_refused_at_each_step(caplog):
    ours = trainer(AdamConfig(lr=0.1))
    ((x, y),) = batches(1)
    ours.train_step(x, y)
    whole = ours.state_dict()
    moments = {k: v for k, v in whole["optimizer"].items() if k != "exp_avg/0.weight"}
    ours.load_state_dict({**whole, "optimizer": moments})
    for _ in range(2):
        with pytest.raises(steep.DataError, match="some moments"):
            ours.train_step(x, y)
    none = {k: v for k, v in whole["optimizer"].items() if "0.weight" not in k}
    ours.load_state_dict({**whole, "optimizer": none})
    ours.train_step(x, y)
    assert "the state has no moments of 0.weight: they start anew" in caplog.text


def test_groups_of_options_are_attributes(caplog):
    notices.forget()
    given = {
        "distributed": {"deepspeed_zero_optimization": {"stage": 0}},
        "graph_transformer": {"propagate_cast_ops_config": {"level": 2}},
        "session_options": object(),
        "provider_options": {"cpu": {}},
    }
    options = ORTTrainerOptions(given)
    assert options.distributed.deepspeed_zero_optimization.stage == 0
    assert options.distributed.pipeline_parallel.pipeline_parallel_size == 1
    casts = options.graph_transformer.propagate_cast_ops_config
    assert (casts.strategy, casts.level, casts.allow) == ("FLOOD_FILL", 2, [])
    assert options.debug.graph_save_paths.model_with_gradient_graph_path == ""
    said = [record.message.partition(" ")[0] for record in caplog.records]
    casts_key = "graph_transformer.propagate_cast_ops_config"
    assert sorted(said) == [casts_key, "provider_options", "session_options"]
    options.utils.frozen_weights.append("a")
    assert ORTTrainerOptions().utils.frozen_weights == []
    notices.forget()


class Parts(torch.nn.Module):
    """With a layer that some calls leave out, and one that none runs."""

    def __init__(self):
        super().__init__()
        self.layer, self.more, self.unused = (
            torch.nn.Linear(4, 2),
            torch.nn.Linear(2, 2),
            torch.nn.Linear(2, 2),
        )
        self.uses_more = True

    def forward(self, x):
        y = self.layer(x)
        return self.more(y) if self.uses_more else y


def test_what_has_no_gradient_stays_and_keeps_its_moments():
    torch.manual_seed(0)
    model = Parts()
    other = copy.deepcopy(model)
    config = AdamConfig(lr=0.05, lambda_coef=0.1)
    options = {"utils": {"grad_norm_clip": False}}
    ort = trainer(config, model, **options)
    adam = torch.optim.AdamW(other.parameters(), 0.05, weight_decay=0.1)
    for i, (x, y) in enumerate(batches(6)):
        for m in (model, other):
            m.uses_more = i % 3 != 1
            m.layer.bias.requires_grad_(i != 3)
        ort.train_step(x, y)
        adam.zero_grad()
        LOSS(other(x), y).backward()
        adam.step()
        if i == 4:  # a step without the second layer
            state = ort.state_dict()
            ort = trainer(config, model, **options)
            ort.load_state_dict(state)
    assert_same(model, other)


def test_gradients_and_weights_that_users_set_are_theirs():
    model = net()
    other = copy.deepcopy(model)
    trainers = [trainer(SGDConfig(lr=0.1), m) for m in (model, other)]
    for x, y in batches(2):
        gradient = torch.ones_like(model[0].weight)
        model[0].weight.grad = gradient
        trainers[0].train_step(x, y)
        trainers[1].train_step(x, y)
        assert model[0].weight.grad is gradient and (gradient == 1).all()
        assert other[0].weight.grad is None
        for m in (model, other):
            m[0].weight.data = torch.full((m[0].weight.shape[1], m[0].weight.shape[0]), 0.1).t()
    before = other[0].weight.detach().clone()
    trainers[1].train_step(*batches(1)[0])
    assert not torch.equal(other[0].weight, before)
    trainers[0].train_step(*batches(1)[0])
    assert_same(model, other)


def test_a_bound_of_the_norm_for_some_parameters_is_refused():
    with pytest.raises(steep.DataError, match="max_norm_clip"):
        AdamConfig([{"params": ["0.weight"], "max_norm_clip": 0.5}])

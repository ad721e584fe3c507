"""The whole step in one graph: same losses and weights as PyTorch's loop, in both dialects."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def net():
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def data(n=8):
    return torch.randn(n, 6), torch.randn(n, 3)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "nesterov": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99), eps=1e-6),
    "groups": lambda p: torch.optim.AdamW(
        [{"params": list(p)[:2]}, {"params": list(p)[2:], "lr": 0.002, "weight_decay": 0.0}],
        lr=0.01,
    ),
}


def groups(module, make):
    return make(list(module.parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_follows_torch(name):
    model, criterion = net(), torch.nn.MSELoss()
    twin = copy.deepcopy(model)
    optimizer = groups(twin, OPTIMIZERS[name])
    trainer = steep.trainer(model, criterion, groups(model, OPTIMIZERS[name]))
    for _ in range(25):
        x, y = data()
        optimizer.zero_grad()
        expected_pred = twin(x)
        expected = criterion(expected_pred, y)
        expected.backward()
        optimizer.step()
        loss, pred = trainer.step(x, y)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(pred, expected_pred.detach(), rtol=1e-4, atol=1e-5)
    for p, q in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5)  # visible in the model


def test_scheduler_and_clipping():
    model, criterion = net(), torch.nn.MSELoss()
    twin = copy.deepcopy(model)
    made = []
    for m in (twin, model):
        o = torch.optim.SGD(m.parameters(), lr=0.5)
        made.append((o, torch.optim.lr_scheduler.StepLR(o, 3, 0.5)))
    trainer = steep.trainer(model, criterion, made[1][0], clip_norm=0.1, predictions=False)
    for _ in range(10):
        x, y = data()
        made[0][0].zero_grad()
        expected = criterion(twin(x), 10 * y)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        made[0][0].step()
        loss = trainer.step(x, 10 * y)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-6)
        for _, scheduler in made:
            scheduler.step()


def test_other_batch_sizes_frozen_parts_and_evaluation():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    trainer = steep.trainer(
        model, torch.nn.MSELoss(), torch.optim.AdamW(model[2].parameters(), lr=0.01)
    )
    for n in (8, 3, 1, 8):
        trainer.step(*data(n))
    assert torch.equal(model[0].weight, before)
    x, y = data(5)
    loss, pred = trainer.evaluate(x, y)
    model.eval()
    torch.testing.assert_close(pred, model(x).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss, torch.nn.functional.mse_loss(model(x), y).detach())


def test_state_dict_resumes_exactly():
    def fresh():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        return steep.trainer(model, torch.nn.MSELoss(), torch.optim.AdamW(model.parameters()))

    batches = [data() for _ in range(6)]
    a = fresh()
    for b in batches[:3]:
        a.step(*b)
    state = a.state_dict()
    expected = [float(a.step(*b)[0]) for b in batches[3:]]
    b = fresh()
    with torch.no_grad():
        for p in b.model.parameters():
            p.zero_()
    b.load_state_dict(state)
    assert [float(b.step(*x)[0]) for x in batches[3:]] == expected
    assert set(a.model.state_dict()) <= set(state)
    assert "optimizer/exp_avg/0.weight" in state


def test_checkpoint_with_dropout_resumes_bit_for_bit(tmp_path):
    def fresh():
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3)
        )
        return steep.trainer(
            model, torch.nn.MSELoss(), torch.optim.AdamW(model.parameters()), seed=11
        )

    batches = [data() for _ in range(6)]
    a = fresh()
    for b in batches[:3]:
        a.step(*b)
    a.save_checkpoint(tmp_path / "c", {"at": 3})
    expected = [float(a.step(*b)[0]) for b in batches[3:]]
    b = fresh()
    b.compile(*batches[0])
    assert b.load_checkpoint(tmp_path / "c") == {"at": 3}
    assert [float(b.step(*x)[0]) for x in batches[3:]] == expected
    for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_save_as_onnx_runs_in_onnxruntime(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    trainer = steep.trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        trainer.step(*data())
    trainer.save_as_onnx(tmp_path / "m.onnx")
    with pytest.raises(steep.IoError, match="it is a device"):
        trainer.save_as_onnx("/dev/null")
    assert model.training
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    x, _ = data(5)
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(result, model.eval()(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_refusals():
    model = net()
    with pytest.raises(steep.ModelError, match="ASGD"):
        steep.trainer(model, torch.nn.MSELoss(), torch.optim.ASGD(model.parameters()))
    with pytest.raises(steep.ModelError, match="differentiable"):
        steep.trainer(
            model, torch.nn.MSELoss(), torch.optim.Adam(model.parameters(), differentiable=True)
        )
    trainer = steep.trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(steep.ModelError, match="compiled"):
        trainer.session  # noqa: B018
    trainer.step(*data())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x, y = data()
    for bad, kind in [
        ((x,), steep.DataError),
        ((x.numpy(), y), steep.DataError),
        ((x[:, :4], y), steep.ShapeError),
        ((x, torch.full_like(y, float("nan"))), steep.DataError),
        ((x.double() * 1e300, y), steep.DataError),  # infinite in float32
    ]:
        with pytest.raises(kind):
            trainer.step(*bad)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    loss, _ = trainer.evaluate(x, y)
    assert trainer.evaluate(x.double(), y)[0] == loss  # data is converted
    trainer.step(x, y)


# --- the dialect of descriptions ------------------------------------------------------------------

WORDS, BPTT, BATCH = 50, 7, 4


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, 8)
        self.decoder = torch.nn.Linear(8, WORDS)

    def forward(self, src):
        return self.decoder(torch.relu(self.embedding(src)))


def loss_with_flat_output(output, target):
    return torch.nn.functional.cross_entropy(output.view(-1, WORDS), target.view(-1))


def described(model, optimizer="SGDOptimizer", attributes=None):
    source = steep.IODescription("src", [BPTT, BATCH], torch.int64)
    label = steep.IODescription("label", [BPTT, BATCH], torch.int64)
    loss = steep.IODescription("loss", [], torch.float32)
    output = steep.IODescription("output", [BPTT, BATCH, WORDS], torch.float32)
    return steep.ORTTrainer(
        model,
        loss_with_flat_output,
        steep.ModelDescription([source, label], [loss, output]),
        optimizer,
        attributes,
        steep.IODescription("Learning_Rate", [1], torch.float32),
        torch.device("cpu"),
        _opset_version=12,
    )


def words():
    return torch.randint(0, WORDS, (BPTT, BATCH)), torch.randint(0, WORDS, (BPTT, BATCH))


@pytest.mark.parametrize(
    "name, attributes, reference",
    [
        ("SGDOptimizer", None, lambda p: torch.optim.SGD(p, lr=0.5)),
        (
            "AdamOptimizer",
            {"alpha": 0.9, "beta": 0.99, "lambda": 0.1, "epsilon": 1e-6},
            lambda p: torch.optim.AdamW(p, lr=0.5, betas=(0.9, 0.99), weight_decay=0.1, eps=1e-6),
        ),
    ],
)
def test_described_trainer_follows_torch(name, attributes, reference):
    model = Words()
    twin = copy.deepcopy(model)
    optimizer = reference(twin.parameters())
    trainer = described(model, name, attributes)
    for step in range(10):
        rate = 0.01 * (step + 1)
        source, target = words()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        expected = loss_with_flat_output(twin(source), target)
        expected.backward()
        optimizer.step()
        loss, output = trainer.train_step(source, target, torch.tensor([rate]))
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
        assert output.shape == (BPTT, BATCH, WORDS)
    source, target = words()
    loss, output = trainer.eval_step(source, target)
    torch.testing.assert_close(output, twin(source).detach(), rtol=1e-3, atol=1e-4)


def test_lamb_learns_and_decay_by_parameter():
    model = Words()
    trainer = described(
        model, "LambOptimizer", lambda name: {"lambda": 0.0 if "bias" in name else 0.01}
    )
    source, target = words()
    losses = [float(trainer.train_step(source, target, torch.tensor([0.05]))[0]) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    trainer.load_state_dict(trainer.state_dict())


def test_described_refusals():
    with pytest.raises(steep.ModelError, match="SGDOptimizer"):
        described(Words(), "RMSProp")
    with pytest.raises(steep.ModelError, match="gamma"):
        described(Words(), "AdamOptimizer", {"gamma": 1})
    trainer = described(Words())
    with pytest.raises(steep.DataError, match="Learning_Rate"):
        trainer.train_step(*words())

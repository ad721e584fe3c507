"""``state_precision`` of ``steep.trainer``: the optimizer's state has moments in float32."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402

FORMS = ["bfloat16", "int8"]
OPTIMIZERS = {
    "Adam": (torch.optim.Adam, {"lr": 0.003}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.003, "weight_decay": 0.01}),
    "SGD": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
}
each_form = pytest.mark.parametrize("form", FORMS)
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 80), torch.nn.Tanh(), torch.nn.Linear(80, 3))


def trainer_of(model: Any, name: str, form: str) -> tuple[Any, Any]:
    kind, settings = OPTIMIZERS[name]
    optimizer = kind(model.parameters(), **settings)
    made = steep.trainer(
        model, torch.nn.MSELoss(), optimizer, state_precision=form, predictions=False, seed=1
    )
    return made, optimizer


def batch(i: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(16, 64, generator=generator)
    return x, torch.sin(x[:, :3])


def run(trainer: Any, steps: range) -> list[float]:
    return [float(trainer.step(*batch(i))) for i in steps]


def weights(model: Any) -> list[Any]:
    return [p.detach().clone() for p in model.parameters()]


@each_form
@each_optimizer
def test_a_state_dict_of_the_trainer_has_floats_and_goes_on(name: str, form: str) -> None:
    one = net()
    trainer, _ = trainer_of(one, name, form)
    run(trainer, range(3))
    state = trainer.state_dict()
    moments = {k: v for k, v in state.items() if k.startswith("optimizer/")}
    assert moments.pop("optimizer/step") == 3
    assert moments and all(v.dtype.is_floating_point for v in moments.values())
    assert {v.dtype for k, v in moments.items() if "scale" in k} == set()
    other = net()
    second, _ = trainer_of(other, name, form)
    second.compile(*batch(0))
    second.load_state_dict(state)
    second.session.run_count = trainer.session.run_count
    assert run(trainer, range(3, 6)) == run(second, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@each_form
@each_optimizer
def test_a_state_dict_of_the_optimizer_is_complete_and_is_taken(name: str, form: str) -> None:
    one = net()
    trainer, optimizer = trainer_of(one, name, form)
    run(trainer, range(3))
    state = copy.deepcopy(optimizer.state_dict())
    kinds = {"momentum_buffer"} if name == "SGD" else {"step", "exp_avg", "exp_avg_sq"}
    assert all(set(values) == kinds for values in state["state"].values())
    assert len(state["state"]) == 4
    large = state["state"][0]
    assert all(v.dtype == torch.float32 for v in large.values())
    # only while state_dict() runs
    assert set(optimizer.state[one[0].weight]) == kinds - {
        "momentum_buffer",
        "exp_avg",
        "exp_avg_sq",
    }
    assert kinds <= set(optimizer.state[one[0].bias])

    other = net()
    other.load_state_dict(one.state_dict())
    second, second_optimizer = trainer_of(other, name, form)
    second.compile(*batch(0))
    second_optimizer.load_state_dict(state)
    second.session.run_count = trainer.session.run_count
    assert run(trainer, range(3, 6)) == run(second, range(3, 6))
    again, wanted = second_optimizer.state_dict()["state"], optimizer.state_dict()["state"]
    for i, values in wanted.items():
        assert all(torch.equal(values[k], again[i][k]) for k in values)


@each_form
def test_pytorch_goes_on_from_its_state(form: str) -> None:
    model = net()
    trainer, optimizer = trainer_of(model, "AdamW", form)
    run(trainer, range(5))
    theirs = net()
    theirs.load_state_dict(model.state_dict())
    eager = torch.optim.AdamW(theirs.parameters())
    eager.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for i in range(5, 8):
        eager.zero_grad()
        x, y = batch(i)
        torch.nn.functional.mse_loss(theirs(x), y).backward()
        eager.step()
    run(trainer, range(5, 8))
    for a, b in zip(weights(model), weights(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


@each_form
@each_optimizer
def test_moments_survive_another_compilation(name: str, form: str) -> None:
    """The new step goes on as a trainer does that is given the state of the old one."""
    one, other = net(), net()
    trainer, optimizer = trainer_of(one, name, form)
    run(trainer, range(4))
    state, session = copy.deepcopy(optimizer.state_dict()), trainer.session
    other.load_state_dict(one.state_dict())
    for model in (one, other):
        model[2].bias.requires_grad_(False)
    second, second_optimizer = trainer_of(other, name, form)
    second.compile(*batch(0))
    second_optimizer.load_state_dict(state)
    second.session.run_count = session.run_count
    assert run(trainer, range(4, 7)) == run(second, range(4, 7))
    assert trainer.session is not session
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@each_form
@each_optimizer
def test_a_state_that_is_cleared_begins_anew(name: str, form: str) -> None:
    model = net()
    trainer, optimizer = trainer_of(model, name, form)
    run(trainer, range(4))
    optimizer.state.clear()
    run(trainer, range(4, 5))
    kind = "momentum_buffer" if name == "SGD" else "exp_avg"
    found = optimizer.state_dict()["state"][0][kind]
    assert found.abs().max() > 0
    if name != "SGD":
        assert float(optimizer.state[model[0].weight]["step"]) == 1


def test_optimizers_without_it_are_refused() -> None:
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters())
    with pytest.raises(steep.ModelError, match="keeps its states in float32 only"):
        trainer = steep.trainer(model, torch.nn.MSELoss(), optimizer, state_precision="int8")
        trainer.step(*batch(0))


class Language(torch.nn.Module):
    """Scores of the next character after each."""

    def __init__(self, words: int, width: int = 64, length: int = 32) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.place = torch.nn.Parameter(torch.randn(length, width) * 0.02)
        layer = torch.nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.scores = torch.nn.Linear(width, words)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask)

    def forward(self, text: Any) -> Any:
        hidden = self.encoder(self.embed(text) + self.place, mask=self.mask)
        return self.scores(hidden)


def test_a_language_model_reaches_the_loss_of_float32() -> None:
    text = (steep.__doc__ or "") + (torch.nn.functional.__doc__ or "") + (torch.__doc__ or "")
    text += str(torch.nn.Module.__doc__) + str(torch.optim.AdamW.__doc__)
    text += str(steep.trainer.__doc__) + str(steep.TrainingSession.__doc__)
    words = sorted(set(text))
    data = torch.tensor([words.index(c) for c in text])
    found = {}
    for form in ("float32", *FORMS):
        torch.manual_seed(0)
        model = Language(len(words))
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        trainer = steep.trainer(
            model,
            lambda scores, y: torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten()),
            optimizer,
            predictions=False,
            state_precision=form,
        )
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(200):
            at = torch.randint(0, len(data) - 33, (16,), generator=generator)
            rows = torch.stack([data[i : i + 33] for i in at])
            losses.append(float(trainer.step(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())))
        found[form] = sum(losses[-50:]) / 50
        assert found[form] < 0.75 * losses[0]
    for form in FORMS:
        assert found[form] == pytest.approx(found["float32"], rel=0.01), found

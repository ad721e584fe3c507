"""What trainers load: the rate after a checkpoint, and states that have some moments only."""

import logging

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402


def net():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)


def trainer_of(model, kind=torch.optim.AdamW, **options):
    return steep.trainer(model, torch.nn.MSELoss(), kind(model.parameters(), lr=0.1, **options))


def test_the_rate_of_a_call_counts_after_a_load(tmp_path):
    def fresh():
        described = steep.ModelDescription(
            [
                steep.IODescription("x", ["N", 4], torch.float32),
                steep.IODescription("y", ["N", 3], torch.float32),
            ],
            [steep.IODescription("loss", [], torch.float32)],
        )
        rate = steep.IODescription("lr", [1], torch.float32)
        return steep.ORTTrainer(
            net(), torch.nn.MSELoss(), described, "SGDOptimizer", None, rate, seed=0
        )

    saved = fresh()
    saved.train_step(*batch(0), torch.tensor([0.01]))
    saved.save_checkpoint(tmp_path / "run")
    loaded = fresh()
    loaded.train_step(*batch(1), torch.tensor([0.1]))
    loaded.load_checkpoint(tmp_path / "run")
    for trainer in (saved, loaded):
        trainer.train_step(*batch(1), torch.tensor([0.1]))  # the rate that `loaded` had before
    for p, q in zip(saved.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(p, q)


# (what the state is of, without which moment, into what)
PARTS = {
    "a moment is missing": (torch.optim.AdamW, "exp_avg/weight", torch.optim.AdamW, {}),
    "amsgrad": (torch.optim.AdamW, "", torch.optim.AdamW, {"amsgrad": True}),
    "nadam": (torch.optim.AdamW, "", torch.optim.NAdam, {}),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_a_state_with_some_moments_of_a_parameter_is_refused(part, compiled):
    kind, left_out, into, options = PARTS[part]
    trainer = trainer_of(net(), kind)
    trainer.step(*batch(0))
    state = trainer.state_dict()
    state.pop(f"optimizer/{left_out}", None)
    other = trainer_of(net(), into, **options)
    if compiled:
        other.compile(*batch(0))
        with pytest.raises(steep.DataError, match="some moments of a parameter"):
            other.load_state_dict(state)
        other.step(*batch(1))
        return
    other.load_state_dict(state)
    for _ in range(2):  # no step goes on without them
        with pytest.raises(steep.DataError, match="some moments of a parameter"):
            other.step(*batch(1))
    whole = trainer_of(net(), into, **options)
    whole.step(*batch(0))
    other.load_state_dict(whole.state_dict())
    for t in (whole, other):
        t.step(*batch(1))
    for p, q in zip(whole.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_parameter_without_moments_starts_anew_and_is_named(caplog):
    frozen = net()
    frozen.bias.requires_grad_(False)
    trainer = trainer_of(frozen)
    trainer.step(*batch(0))
    other = trainer_of(net())
    other.load_state_dict(trainer.state_dict())
    with caplog.at_level(logging.WARNING, "steep"):
        other.step(*batch(1))
    assert "no moments of bias: they start anew" in caplog.text


def test_weights_alone_are_loaded_without_a_word(caplog):
    other = trainer_of(net())
    other.load_state_dict(net().state_dict())
    with caplog.at_level(logging.WARNING, "steep"):
        other.step(*batch(1))
    assert not caplog.records


# (settings of the optimizer, options of the trainer, what the first step says)
CHANGES = {
    "nothing": ({}, {}, ""),
    "rate": ({"lr": 0.2}, {}, "groups[0].lr 0.1 → 0.2"),
    "decay": ({"weight_decay": 0.3}, {}, "groups[0].weight_decay 0.01 → 0.3"),
    "clipping": ({}, {"clip_norm": 1.0}, "clip_norm 0 → 1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_step_says_what_is_otherwise_than_in_the_checkpoint(tmp_path, name, caplog):
    settings, options, text = CHANGES[name]

    def fresh(settings, options):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 0.1, **settings})
        return steep.trainer(model, torch.nn.MSELoss(), optimizer, **options), optimizer

    saved, optimizer = fresh({}, {})
    optimizer.param_groups[0]["lr"] = 0.1
    saved.step(*batch(0))
    saved.save_checkpoint(tmp_path / "run")
    trainer, optimizer = fresh({**settings, "lr": 0.7}, options)
    trainer.compile(*batch(0))
    trainer.load_checkpoint(tmp_path / "run")
    optimizer.param_groups[0]["lr"] = settings.get("lr", 0.1)  # as a schedule that is restored
    trainer.step(*batch(0))
    trainer.step(*batch(1))
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert said == ([f"options are others than in the checkpoint: {text}"] if text else [])


def change_kind(state):
    return {key.replace("exp_avg_sq/", "momentum_buffer/"): t for key, t in state.items()}


def cut(state):
    return {key: t[:1] if "exp_avg/" in key and t.dim() == 2 else t for key, t in state.items()}


def without_tensor(state):
    return {key: "none" if "exp_avg/" in key else t for key, t in state.items()}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (change_kind, steep.ModelError),
        (cut, steep.ShapeError),
        (without_tensor, steep.DataError),
    ],
)
def test_moments_that_do_not_fit_change_no_weight(change, error):
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(net.parameters())
    trainer = steep.trainer(net, torch.nn.MSELoss(), optimizer)
    trainer.step(torch.ones(2, 4), torch.ones(2, 4))
    state = trainer.state_dict()
    trainer.step(torch.ones(2, 4), torch.ones(2, 4))
    before = trainer.state_dict()
    with pytest.raises(error):
        trainer.load_state_dict(change(state))
    torch.testing.assert_close(trainer.state_dict(), before, rtol=0, atol=0)

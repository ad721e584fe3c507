"""``trainer.step(…, accumulate=True)``: parts of a step give what a loop of PyTorch gives."""

import copy

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402

LOSS = torch.nn.MSELoss()


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def rows(*counts):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 6, generator=generator), torch.randn(n, 3, generator=generator))
        for n in counts
    ]


def by_pytorch(model, optimizer, steps, clip=0.0):
    """Losses of steps, each a list of parts; the gradient of a step is the mean of its parts'."""
    losses = []
    for parts in steps:
        optimizer.zero_grad()
        loss = sum(LOSS(model(x), y) for x, y in parts) / len(parts)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_parts(trainer, steps):
    losses = []
    for parts in steps:
        for x, y in parts:
            trainer.step(x, y, accumulate=True)
        losses.append(float(trainer.apply_gradients()))
    return losses


def assert_same(model, other):
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize("clip", [0.0, 0.1])
@pytest.mark.parametrize(
    "steps",
    [
        [(4, 4), (4, 4), (4, 4)],
        [(4, 4, 3), (4, 4, 2), (1,)],  # the third part compiles a graph for any extents
        [(4, 3), (2, 2)],
    ],
    ids=["equal", "last smaller", "first differs"],
)
def test_parts_give_what_a_loop_gives(steps, clip):
    model = net()
    other = copy.deepcopy(model)
    steps = [rows(*counts) for counts in steps]
    trainer = steep.trainer(model, LOSS, adamw(model), clip_norm=clip)
    losses = by_parts(trainer, steps)
    assert losses == pytest.approx(by_pytorch(other, adamw(other), steps, clip), rel=1e-5)
    assert_same(model, other)


def test_parts_and_plain_steps_alternate():
    model = net()
    other = copy.deepcopy(model)
    first, second = rows(4, 4)
    trainer = steep.trainer(model, LOSS, adamw(model))
    trainer.step(*first)
    by_parts(trainer, [[first, second]])
    trainer.step(*second)
    by_pytorch(other, adamw(other), [[first], [first, second], [second]])
    assert_same(model, other)


def test_rates_of_an_accumulated_step():
    model = net()
    other = copy.deepcopy(model)
    parts = rows(4, 4)
    optimizer, theirs = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, other))
    trainer = steep.trainer(model, LOSS, optimizer)
    for x, y in parts:
        trainer.step(x, y, accumulate=True)
    trainer.apply_gradients(lr=0.25)
    assert optimizer.param_groups[0]["lr"] == 0.25
    theirs.param_groups[0]["lr"] = 0.25
    by_pytorch(other, theirs, [parts])
    assert_same(model, other)


def test_what_does_not_fit_is_refused_and_changes_nothing():
    model = net()
    before = copy.deepcopy(model)
    ((x, y),) = rows(4)
    trainer = steep.trainer(model, LOSS, adamw(model))
    trainer.compile(x, y)
    with pytest.raises(steep.DataError, match="no accumulated gradients"):
        trainer.apply_gradients()
    trainer.step(x, y, accumulate=True)
    with pytest.raises(steep.DataError, match="wait to be applied"):
        trainer.step(x, y)
    with pytest.raises(steep.DataError, match="wait to be applied"):
        trainer.step(x[:2], y[:2])  # would compile again
    with pytest.raises(steep.DataError, match="wait to be applied"):
        trainer.save_checkpoint("never")
    assert_same(model, before)
    trainer.drop_gradients()
    with pytest.raises(steep.DataError, match="no accumulated gradients"):
        trainer.apply_gradients()
    trainer.step(x, y)
    with pytest.raises(AssertionError):
        assert_same(model, before)


def test_an_optimizer_that_changed_is_refused():
    model = net()
    ((x, y),) = rows(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = steep.trainer(model, LOSS, optimizer)
    trainer.step(x, y, accumulate=True)
    optimizer.param_groups[0]["nesterov"] = True
    with pytest.raises(steep.DataError, match="parameters or flags changed"):
        trainer.apply_gradients()
    optimizer.param_groups[0]["nesterov"] = False
    trainer.apply_gradients()


def test_gradients_that_were_carried_over_wait_like_others(tmp_path):
    model = net()
    other = copy.deepcopy(model)
    first, second = rows(4, 3)
    trainer = steep.trainer(model, LOSS, adamw(model))
    trainer.step(*first, accumulate=True)
    with pytest.raises(steep.Error):  # compiles for any extents, and then finds a wrong row
        trainer.step(second[0], second[1][:2], accumulate=True)
    with pytest.raises(steep.DataError, match="wait to be applied"):
        trainer.save_checkpoint(tmp_path / "checkpoint")
    trainer.step(*second, accumulate=True)
    trainer.apply_gradients()
    by_pytorch(other, adamw(other), [[first, second]])
    assert_same(model, other)


def test_float16_leaves_out_a_part_that_overflows():
    model = net()
    ((x, y),) = rows(4)
    trainer = steep.trainer(model, LOSS, adamw(model), precision="fp16", loss_scale=2.0**15)
    trainer.step(x, y, accumulate=True)
    trainer.step(x * 1e4, y * 1e4, accumulate=True)
    assert torch.isfinite(trainer.apply_gradients())
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_step_whose_parts_all_overflow_is_skipped(caplog):
    model = net()
    ((x, y),) = rows(4)
    trainer = steep.trainer(model, LOSS, adamw(model), precision="fp16", loss_scale=2.0**15)
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        trainer.step(x * 1e4, y * 1e4, accumulate=True)
    with caplog.at_level("INFO", logger="steep"):
        trainer.apply_gradients()
    assert "skipped a step" in caplog.text
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_parts_of_a_cross_entropy_count_by_their_labels():
    torch.manual_seed(0)
    whole, parts = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    parts.load_state_dict(whole.state_dict())
    x, y = torch.randn(10, 5), torch.randint(0, 3, (10,))
    y[4] = -100
    one, several = (
        steep.trainer(m, torch.nn.CrossEntropyLoss(), torch.optim.SGD(m.parameters(), lr=1.0))
        for m in (whole, parts)
    )
    loss, _ = one.step(x, y)
    several.step(x[:2], y[:2], accumulate=True)
    several.step(x[2:], y[2:], accumulate=True)
    torch.testing.assert_close(several.apply_gradients(), loss, check_dtype=False)
    assert_same(whole, parts)

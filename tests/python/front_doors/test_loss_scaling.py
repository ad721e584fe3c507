"""float16 with loss scaling: through a trainer's own, and through PyTorch's GradScaler."""

import copy

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep import ORTModule  # noqa: E402


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 5)
    )


def batches(count=30):
    torch.manual_seed(1)
    rule = torch.randn(16, 5)
    return [(x, (x @ rule).argmax(-1)) for x in torch.randn(count, 24, 16)]


def trained(precision, **options):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    trainer = steep.trainer(
        model, torch.nn.CrossEntropyLoss(), optimizer, precision=precision, **options
    )
    losses = [float(trainer.step(x, y)[0]) for x, y in batches()]
    return losses, trainer


def test_losses_follow_those_of_fp32():
    wide, _ = trained("fp32")
    narrow, trainer = trained("fp16")
    assert wide != narrow
    assert narrow == pytest.approx(wide, rel=5e-3)
    assert trainer.session.step_count == 30
    assert trainer.session.loss_scale == 2.0**16


def test_a_scale_that_is_too_large_comes_down_while_weights_wait(caplog):
    with caplog.at_level("INFO", "steep"):
        losses, trainer = trained("fp16", loss_scale=2.0**24, loss_scale_window=0)
    skipped = sum("skipped a step" in r.getMessage() for r in caplog.records)
    assert skipped > 0
    assert trainer.session.loss_scale == 2.0 ** (24 - skipped)
    assert trainer.session.step_count == 30 - skipped
    assert losses[-1] < losses[0]


def test_the_state_of_a_trainer_has_its_scale():
    _, trainer = trained("fp16", loss_scale_window=10)
    state = trainer.state_dict()
    assert float(state["optimizer/loss_scale"]) == 2.0**19
    _, other = trained("fp16")
    other.load_state_dict(state)
    assert other.session.loss_scale == 2.0**19


def loop(model, steps=30, scale=2.0**16):
    """An ordinary PyTorch loop with GradScaler; the losses and the scale at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    losses = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, scaler.get_scale()


def test_grad_scaler_drives_an_ort_module():
    expected, expected_scale = loop(net())
    losses, scale = loop(ORTModule(net()))
    assert losses == pytest.approx(expected, rel=0.01)
    assert scale == expected_scale


def test_grad_scaler_sees_the_overflow():
    model = net()
    before = copy.deepcopy(model.state_dict())
    _, scale = loop(ORTModule(model), steps=1, scale=2.0**30)
    assert scale == 2.0**29
    assert all(torch.equal(before[n], p) for n, p in model.state_dict().items())


def test_products_beside_a_loss_are_float16():
    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, y):
            logits = self.net(x)
            return torch.nn.functional.cross_entropy(logits, y), logits

    x, y = batches(1)[0]
    model = ORTModule(WithLoss())
    with torch.autocast("cpu", torch.float16):
        loss, logits = model(x, y)
    assert (loss.dtype, logits.dtype) == (torch.float32, torch.float16)


def test_where_it_is_no_gain_the_log_says_so_once(caplog):
    from steep.session.training import announce_precision

    announce_precision.cache_clear()
    with caplog.at_level("INFO", "steep"):
        trained("fp16")
        trained("fp16")
    said = sum("float16 products" in r.getMessage() for r in caplog.records)
    assert said == (0 if steep._steep.has_products("float16") else 1)

"""``steep.Lamb`` against the paper's formulas in PyTorch's tensors."""

import copy

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402

LOSS = torch.nn.MSELoss()


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def rows(n=5, steps=4):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 6, generator=generator), torch.randn(n, 3, generator=generator))
        for _ in range(steps)
    ]


def reference(model, groups, batches, betas, eps, bias_correction):
    """You et al. 2020, algorithm 2, with the trust ratio 1 where a norm is 0."""
    moments = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()}
    for t, (x, y) in enumerate(batches, 1):
        model.zero_grad()
        LOSS(model(x), y).backward()
        with torch.no_grad():
            for parameters, lr, decay in groups:
                for p in parameters:
                    m, v = moments[p]
                    m.lerp_(p.grad, 1 - betas[0])
                    v.lerp_(p.grad**2, 1 - betas[1])
                    first = 1 - betas[0] ** t if bias_correction else 1
                    second = 1 - betas[1] ** t if bias_correction else 1
                    step = (m / first) / ((v / second).sqrt() + eps) + decay * p
                    weight, size = p.norm(), step.norm()
                    p.sub_(lr * (weight / size if weight > 0 and size > 0 else 1.0) * step)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_steps_are_those_of_the_paper(bias_correction):
    model = net()
    other = copy.deepcopy(model)
    batches, betas, eps = rows(), (0.8, 0.9), 1e-5

    def split(of):
        return [
            ([p for p in of.parameters() if p.dim() > 1], 0.05, 0.1),
            ([p for p in of.parameters() if p.dim() == 1], 0.02, 0.0),
        ]

    optimizer = steep.Lamb(
        [{"params": p, "lr": lr, "weight_decay": decay} for p, lr, decay in split(model)],
        betas=betas,
        eps=eps,
        bias_correction=bias_correction,
    )
    trainer = steep.trainer(model, LOSS, optimizer)
    for x, y in batches:
        trainer.step(x, y)
    reference(other, split(other), batches, betas, eps, bias_correction)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_state_goes_on_elsewhere():
    model = net()
    batches = rows(steps=6)
    optimizer = steep.Lamb(model.parameters(), lr=0.02)
    trainer = steep.trainer(model, LOSS, optimizer)
    for x, y in batches[:3]:
        trainer.step(x, y)
    again, copied = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    second = steep.Lamb(again.parameters())
    second.load_state_dict(copied)
    other = steep.trainer(again, LOSS, second)
    for x, y in batches[3:]:
        trainer.step(x, y)
        other.step(x, y)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_schedulers_set_the_rate():
    model = net()
    optimizer = steep.Lamb(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = [p.detach().clone() for p in model.parameters()]
    trainer = steep.trainer(model, LOSS, optimizer)
    trainer.step(*rows()[0])
    schedule.step()
    for a, b in zip(model.parameters(), before, strict=True):
        assert torch.equal(a, b)  # the rate is 0 from the start


@pytest.mark.parametrize("settings", [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"eps": float("nan")}])
def test_numbers_out_of_range(settings):
    with pytest.raises(ValueError, match="Invalid"):
        steep.Lamb(net().parameters(), **settings)


def test_it_makes_no_step_of_its_own():
    with pytest.raises(RuntimeError, match=r"trainer\.step"):
        steep.Lamb(net().parameters()).step()

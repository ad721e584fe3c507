"""Trainers with parallel="torch": N processes train as PyTorch does with all of their rows."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from several_processes import in_processes  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import steep  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(16, 8, generator=GENERATOR)
Y = torch.randn(16, 4, generator=GENERATOR)
CLASSES = torch.randint(0, 4, (16,), generator=GENERATOR)
IGNORED = torch.where(torch.arange(16) % 5 < 2, -100, CLASSES)


class Net(nn.Module):
    """With a layer that is not trained, and a buffer that forward writes."""

    def __init__(self, width=6, seed=0, activation=torch.tanh):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(8, width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.frozen.weight.data = self.frozen.weight.data.T  # not contiguous
        self.last = nn.Linear(width, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.activation = activation

    def forward(self, x):
        self.calls += 1
        return self.last(self.frozen(self.activation(self.first(x))))


CASES = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), IGNORED, nn.CrossEntropyLoss()),
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=0.01), Y, nn.MSELoss()),
}
DIVIDED = (13, 3), (2, 2), (12, 4), (3, 1), (10, 6)  # rows of each rank, in each step


def rows_of(rank, *rows):
    start = sum(rows[:rank])
    return slice(start, start + rows[rank])


def trained(model, optimizer, label, criterion):
    """Steps of PyTorch, each with the rows that the processes have together."""
    for extent in map(sum, DIVIDED):
        optimizer.zero_grad()
        loss = criterion(model(X[:extent]), label[:extent])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        yield float(loss)


def assert_same(model, expected, what):
    for name, value in expected.state_dict().items():
        found = model.state_dict()[name]
        torch.testing.assert_close(
            found, value, rtol=0, atol=1e-6, msg=lambda m, n=name: f"{what}: {n}: {m}"
        )
        every = [torch.empty_like(found) for _ in range(dist.get_world_size())]
        dist.all_gather(every, found)
        assert all(torch.equal(every[0], other) for other in every), name


def equal_pytorch(rank):
    for name, (make, label, criterion) in CASES.items():
        expected, model = Net(), Net(seed=rank)
        losses = trained(expected, make(expected.parameters()), label, criterion)
        optimizer = make(model.parameters())
        trainer = steep.trainer(model, criterion, optimizer, clip_norm=0.5, parallel="torch")
        for wanted, divided in zip(losses, DIVIDED, strict=True):
            mine = rows_of(rank, *divided)
            loss, y = trainer.step(X[mine], label[mine])
            assert float(loss) == pytest.approx(wanted, abs=1e-6), name
            assert y.shape == (divided[rank], 4)
        assert_same(model, expected, name)


def exchange_in_half_the_bytes(rank):
    expected, model = Net(), Net(seed=rank)
    make, label, criterion = CASES["SGD"]
    losses = trained(expected, make(expected.parameters()), label, criterion)
    options = {"clip_norm": 0.5, "parallel": "torch", "wire_precision": "bfloat16"}
    trainer = steep.trainer(model, criterion, make(model.parameters()), **options)
    for wanted, divided in zip(losses, DIVIDED, strict=True):
        mine = rows_of(rank, *divided)
        assert float(trainer.step(X[mine], label[mine])[0]) == pytest.approx(wanted, abs=2e-3)
    weight = model.first.weight
    assert not torch.allclose(weight, expected.first.weight, rtol=0, atol=1e-6)
    every = [torch.empty_like(weight) for _ in range(2)]
    dist.all_gather(every, weight.detach())
    assert torch.equal(*every)
    options["wire_precision"] = ("float32", "bfloat16")[rank]
    trainer = steep.trainer(model, criterion, make(model.parameters()), **options)
    with pytest.raises(steep.ModelError, match="same model") as raised:
        trainer.step(X[:4], label[:4])
    assert raised.value.node == "rank 1: option wire_precision"


def accumulate(rank):
    expected, model = Net(), Net(seed=rank)
    theirs = torch.optim.AdamW(expected.parameters(), lr=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = steep.trainer(model, nn.MSELoss(), optimizer, clip_norm=0.5, parallel="torch")
    for _ in range(2):
        theirs.zero_grad()
        wanted = nn.functional.mse_loss(expected(X), Y)
        wanted.backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
        theirs.step()
        for part in range(2):
            mine = slice(8 * rank + 4 * part, 8 * rank + 4 * part + 4)
            trainer.step(X[mine], Y[mine], accumulate=True)
        assert float(trainer.apply_gradients()) == pytest.approx(wanted.item(), abs=1e-6)
    expected.calls *= 2
    assert_same(model, expected, "accumulated")
    # a part that fails on one rank is that rank's affair; the others learn nothing of it
    trainer.step(X[:4], Y[:4], accumulate=True)
    if rank == 1:
        with pytest.raises(steep.DataError, match="loss of step"):
            trainer.step(X[:4], Y[:4] * np.nan, accumulate=True)
    trainer.apply_gradients()
    # an error before the update is everybody's
    trainer.step(X[:4], Y[:4], accumulate=True)
    optimizer.param_groups[0]["amsgrad"] = rank == 1
    with pytest.raises(steep.DataError, match="flags changed" if rank == 1 else "Rank 1 failed"):
        trainer.apply_gradients()
    optimizer.param_groups[0]["amsgrad"] = False
    trainer.step(X[:4], Y[:4])


def fail_together(rank):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = steep.trainer(model, nn.MSELoss(), optimizer, parallel="torch")
    mine = rows_of(rank, 8, 8)
    wrong = [
        (steep.DataError, (X[mine][: 8 * (1 - rank)], Y[mine][: 8 * (1 - rank)])),  # no rows
        (steep.DataError, (X[mine], Y[mine] * (np.nan if rank == 1 else 1))),
        (steep.DataError, (X[mine],) if rank == 1 else (X[mine], Y[mine])),
    ]
    trainer.step(X[mine], Y[mine])
    before = copy.deepcopy(model.state_dict())
    for kind, fed in wrong:
        with pytest.raises(kind) as raised:
            trainer.step(*fed)
        if rank == 0:
            assert raised.value.node == "rank 1", raised.value
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value), name
    trainer.step(X[mine], Y[mine])
    optimizer.param_groups[0]["lr"] = 0.1 + rank
    with pytest.raises(steep.DataError, match="update differently"):
        trainer.step(X[mine], Y[mine])


def differ(rank, net, options, criterion, what):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = steep.trainer(net, criterion, optimizer, parallel="torch", **options)
    with pytest.raises(steep.ModelError, match="same model") as raised:
        trainer.step(X[:4], Y[:4])
    assert raised.value.node.startswith(f"rank 1: {what}"), raised.value


def tell_differences(rank):
    mse = nn.MSELoss()
    differ(rank, Net(width=6 + rank), {}, mse, "model")
    differ(rank, Net(), {}, nn.L1Loss() if rank == 1 else mse, "model")


def refuse_what_has_no_mean(rank):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = steep.trainer(
        model, nn.CrossEntropyLoss(reduction="sum"), optimizer, parallel="torch"
    )
    with pytest.raises(steep.ModelError, match="The loss is a sum"):
        trainer.step(X, CLASSES)
    trainer = steep.trainer(
        model, lambda y, label: F.mse_loss(y.mean(1), label.mean(1)), optimizer, parallel="torch"
    )
    with pytest.raises(steep.DataError, match="differ in more than their first extent"):
        trainer.step(X[:4], Y[:4, : 4 - rank])


def run_all(rank, names):
    for name in names:
        globals()[name](rank)


def test_two_processes_equal_pytorch_and_all_are_told_what_one_meets():
    names = ["equal_pytorch", "accumulate", "fail_together", "tell_differences"]
    names += ["refuse_what_has_no_mean", "exchange_in_half_the_bytes"]
    in_processes(2, run_all, names)  # once: each process imports and captures for seconds

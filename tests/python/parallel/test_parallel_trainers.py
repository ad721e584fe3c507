"""Trainers with parallel="torch": N processes train as PyTorch does with all of their rows."""

import copy
import gc
import itertools
import os
import shutil
import tempfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from several_processes import in_processes  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import steep  # noqa: E402
from steep.parallel.torch_peers import ensure_group  # noqa: E402

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


def shared_moments(rank, trainer, optimizer):
    """Each parameter's moments are in the optimizer's state of one rank; return all of them."""
    names = {id(p): n for n, p in trainer.model.named_parameters()}
    kept = {names[id(p)] for p, state in optimizer.state.items() if state}
    assert kept == {n.removeprefix("model.") for n in trainer.session.held_parameters}
    every = [None] * dist.get_world_size()
    moments = {
        f"{k}/{names[id(p)]}": v.clone() for p, s in optimizer.state.items() for k, v in s.items()
    }
    dist.all_gather_object(every, moments)
    assert sum(map(len, every)) == len({name for each in every for name in each})
    return {name: value for each in every for name, value in each.items()}


def divide_moments(rank, zero=1):
    ensure_group()
    size = dist.get_world_size()
    for name, (make, label, criterion) in CASES.items():
        expected, model = Net(), Net(seed=rank)
        theirs = make(expected.parameters())
        losses = trained(expected, theirs, label, criterion)
        optimizer = make(model.parameters())
        options = {"clip_norm": 0.5, "parallel": "torch", "zero": zero}
        trainer = steep.trainer(model, criterion, optimizer, **options)
        for wanted, rows in zip(losses, map(sum, DIVIDED), strict=True):
            # other extents on each rank: some compile again where others do not
            divided = [rows - size + 1, *[1] * (size - 1)]
            mine = rows_of(rank, *divided)
            assert float(trainer.step(X[mine], label[mine])[0]) == pytest.approx(wanted, abs=1e-6)
        assert_same(model, expected, name)
        moments = shared_moments(rank, trainer, optimizer)
        assert len(moments) == sum(map(len, (s for s in theirs.state.values() if s)))
        for n, p in expected.named_parameters():
            for kind, value in theirs.state.get(p, {}).items():
                found = moments[f"{kind}/{n}"]
                torch.testing.assert_close(found, value, rtol=0, atol=1e-6)
    state = trainer.state_dict()
    if rank == 0:
        kinds = ("step", "exp_avg", "exp_avg_sq")
        assert {
            n: v for n, v in state.items() if n.startswith("optimizer/") and n.count("/") > 1
        }.keys() == {
            f"optimizer/{k}/{n}"
            for n, p in model.named_parameters()
            for k in kinds
            if p.requires_grad
        }
    box = [state]
    dist.broadcast_object_list(box, 0)
    for kind in ("exp_avg", "exp_avg_sq", "step"):
        for key, value in box[0].items():
            if key.startswith(f"optimizer/{kind}/"):
                assert torch.equal(value, moments[key.removeprefix("optimizer/")]), key
    read_on_any_number(rank, trainer, box[0], moments)


def read_on_any_number(rank, trainer, state, moments):
    """The state and the checkpoint of divided moments load with and without ``zero``."""
    criterion, make = nn.MSELoss(), CASES["AdamW"][0]
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, 0)
    trainer.save_checkpoint(folder[0] + "/c", "mine")
    assert len(os.listdir(folder[0] + "/c")) == 2 + dist.get_world_size()
    after = None
    for options in ({"parallel": "torch", "zero": 1}, {"parallel": "torch"}, {}):
        for form in ("state", "pending", "checkpoint"):
            model = Net(seed=7)
            model.frozen.load_state_dict(trainer.model.frozen.state_dict())
            optimizer = make(model.parameters())
            again = steep.trainer(model, criterion, optimizer, clip_norm=0.5, **options)
            if form != "pending":
                again.compile(X[:4], Y[:4])
            if form == "checkpoint":
                assert again.load_checkpoint(folder[0] + "/c") == "mine"
            else:
                again.load_state_dict(state)
                again.compile(X[:4], Y[:4])
            if "zero" in options:
                found = shared_moments(rank, again, optimizer)
            else:
                names = {id(p): n for n, p in model.named_parameters()}
                found = {
                    f"{k}/{names[id(p)]}": v
                    for p, s in optimizer.state.items()
                    for k, v in s.items()
                }
            assert found.keys() == moments.keys()
            assert all(torch.equal(found[name], moments[name]) for name in found), (options, form)
            assert again.session.step_count == len(DIVIDED)
            if not options:
                continue
            mine = rows_of(rank, *[4] * dist.get_world_size())
            again.step(X[mine], Y[mine])
            after = model.first.weight.detach().clone() if after is None else after
            torch.testing.assert_close(model.first.weight, after, rtol=0, atol=1e-6)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


def refuse_what_is_divided(rank):
    make = CASES["AdamW"][0]
    model = Net()
    with pytest.raises(steep.ModelError) as raised:
        steep.trainer(model, nn.MSELoss(), make(model.parameters()), parallel="torch", zero=3)
    assert raised.value.node == "zero"
    with pytest.raises(steep.ModelError) as raised:
        steep.trainer(model, nn.MSELoss(), make(model.parameters()), zero=1)
    assert raised.value.node == "zero"
    optimizer = make(model.parameters())
    trainer = steep.trainer(model, nn.MSELoss(), optimizer, parallel="torch", zero=1)
    trainer.step(X[:4], Y[:4])
    state = trainer.state_dict()
    if rank == 0:
        trainer.load_state_dict({**state, "optimizer/step": torch.tensor(9)})
    with pytest.raises(steep.DataError, match="same checkpoint or state"):
        trainer.step(X[:4], Y[:4])
    box = [state]
    dist.broadcast_object_list(box, 0)
    trainer.load_state_dict(box[0])
    trainer.step(X[:4], Y[:4])
    # the optimizer's own state_dict has what this rank keeps, and takes a whole one
    held = {f"model.{n}": p for n, p in model.named_parameters()}
    kept = [held[n] for n in trainer.session.held_parameters]
    assert set(optimizer.state) == set(kept)
    moment = {id(p): optimizer.state[p]["exp_avg"].clone() for p in kept}
    whole = optimizer.state_dict()
    some = next(iter(whole["state"].values()))
    for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        whole["state"].setdefault(i, {k: torch.ones_like(p) for k in some} | {"step": some["step"]})
    optimizer.load_state_dict(whole)
    trainer.step(X[:4], Y[:4])
    trained_ones = {p for p in optimizer.state if p.requires_grad}
    assert trained_ones == set(kept)
    assert all(not torch.equal(optimizer.state[p]["exp_avg"], moment[id(p)]) for p in kept)
    model.last.bias.requires_grad_(False)
    with pytest.raises(steep.ModelError, match="Other parameters are trained") as raised:
        trainer.step(X[:4], Y[:4])
    assert raised.value.node == "model.last.bias"


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


def accumulate_divided(rank):
    """With zero=2, a part is sent when it is added, and its error is one of all."""
    expected, model = Net(), Net(seed=rank)
    theirs = torch.optim.AdamW(expected.parameters(), lr=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options = {"clip_norm": 0.5, "parallel": "torch", "zero": 2}
    trainer = steep.trainer(model, nn.MSELoss(), optimizer, **options)
    for step in range(3):
        theirs.zero_grad()
        wanted = nn.functional.mse_loss(expected(X), Y)
        wanted.backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
        theirs.step()
        # in the second step other extents, on one rank first: it compiles between two parts
        ends = (0, 3, 8) if step == 1 and rank == 1 else (0, 4, 8)
        for begin, end in itertools.pairwise(ends):
            mine = slice(8 * rank + begin, 8 * rank + end)
            trainer.step(X[mine], Y[mine], accumulate=True)
        assert float(trainer.apply_gradients()) == pytest.approx(wanted.item(), abs=1e-6)
        expected.calls += 1
    assert_same(model, expected, "accumulated")
    summed = trainer.session.accumulated_gradients().sums
    assert summed.keys() == set(trainer.session.held_parameters)
    before = model.first.weight.detach().clone()
    bad = torch.full_like(Y[:4], torch.nan)
    for wrong in ((X[:4], bad), (X[:0], Y[:0])):  # in the step, and before it
        trainer.step(X[:4], Y[:4], accumulate=True)
        with pytest.raises(steep.DataError, match=None if rank == 1 else "Rank 1 failed"):
            trainer.step(*wrong if rank == 1 else (X[:4], Y[:4]), accumulate=True)
        with pytest.raises(steep.DataError, match="no gradients to apply"):
            trainer.apply_gradients()
    assert torch.equal(model.first.weight, before)
    trainer.step(X[:4], Y[:4])
    model.double()
    with pytest.raises(steep.ModelError, match="has another type than before"):
        trainer.step(X[:4].double(), Y[:4].double())


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


class SometimesRounded(Net):
    """A step of three rows reaches one more parameter, whose gradient is always zero."""

    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(8, 4, bias=False)

    def forward(self, x):
        y = super().forward(x)
        return y + torch.round(self.extra(x)) if len(x) == 3 else y


def keep_states_after_a_refusal(rank):
    model = SometimesRounded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = steep.trainer(model, nn.MSELoss(), optimizer, parallel="torch", zero=1)
    trainer.step(X[:4], Y[:4])
    before = trainer.state_dict()
    with pytest.raises(steep.ModelError, match="gradient of a parameter is always zero"):
        trainer.step(X[:3], Y[:3])
    gc.collect()  # the session that was refused
    after = trainer.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name
    trainer.step(X[:4], Y[:4])


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
    names += ["divide_moments", "accumulate_divided", "refuse_what_is_divided"]
    names += ["keep_states_after_a_refusal"]
    in_processes(2, run_all, names)  # once: each process imports and captures for seconds


def test_three_processes_divide_moments_and_gradients():
    in_processes(3, divide_moments, 2)

"""Hooks and optimizers that see in what order DistributedDataParallel gets its gradients."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (  # noqa: E402
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join  # noqa: E402
from torch.distributed.algorithms.model_averaging.averagers import (  # noqa: E402
    PeriodicModelAverager,
)
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402
from two_processes import assert_same_state, in_two_processes  # noqa: E402

from steep import ORTModule  # noqa: E402

WIDTH = 8


class Net(nn.Module):
    """Layers that are not in the order of their use, and several operations of two weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(WIDTH, 4)
        self.keys, self.values, self.queries = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.heads = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.two = nn.Bilinear(WIDTH, WIDTH, WIDTH)
        self.scale, self.shift = (nn.Parameter(torch.ones(WIDTH)) for _ in range(2))

    def forward(self, x):
        x = torch.tanh(self.conv(x.mT).mT)
        weights = torch.softmax(self.queries(x) @ self.keys(x).mT, -1)
        x = self.norm(x + weights @ self.values(x))
        x = self.heads(x, x, x, need_weights=False)[0] * self.scale + self.shift
        return self.last(torch.tanh(self.two(x, self.queries(x))))  # queries once more


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.last(self.layers(x)[0])


def batch(step, rank):
    generator = torch.Generator().manual_seed(2 * step + rank)
    return torch.randn(3, 5, WIDTH, generator=generator), torch.randn(3, 5, 4, generator=generator)


def train(model, optimizer, rank, steps=6):
    """Return the losses."""
    losses = []
    for step in range(steps):
        x, y = batch(step, rank)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def compare(rank, what, run, kind=Net):
    """``run(model)`` trains a model in a DistributedDataParallel, and returns that and losses."""
    (ours, found), (theirs, expected) = run(ORTModule(kind(), fallback=None)), run(kind())
    assert found == pytest.approx(expected, rel=1e-5), what
    assert_same_state(ours, theirs, what)


# --- hooks ---------------------------------------------------------------------------------------


def gradients_come_in_order(rank):
    """The layout of buckets, after a first step, is the order of gradients in that."""

    def laid_out(model):
        model = DDP(model)
        names = {id(p): name for name, p in model.module.named_parameters()}
        seen = []

        def note(_, bucket):
            seen.append([names[id(p)] for p in bucket.parameters()])
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        model.register_comm_hook(None, note)
        train(model, sgd(model), rank, steps=2)
        return seen

    ours, theirs = laid_out(ORTModule(Net(), fallback=None)), laid_out(Net())
    assert ours == theirs and theirs[0] != theirs[1]


def power_sgd_draws_the_same(rank):
    """One matrix after the other: with another order, they get other random numbers."""

    def run(model):
        model = DDP(model)
        state = power.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        model.register_comm_hook(state, power.powerSGD_hook)
        return model, train(model, sgd(model), rank)

    for kind in (Net, Recurrent):
        compare(rank, f"PowerSGD {kind.__name__}", run, kind)


def local_sgd(rank):
    def run(model):
        model = DDP(model)
        subgroup = dist.new_subgroups(1)[0]
        model.register_comm_hook(PostLocalSGDState(None, subgroup, 2), post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(sgd(model), PeriodicModelAverager(2, warmup_steps=2))
        return model, train(model, optimizer, rank)

    compare(rank, "local SGD", run)


# --- optimizers ----------------------------------------------------------------------------------


def zero(model, **options):
    # The bias of keys has a gradient that is rounding alone, and Adam's epsilon is to drown it.
    settings = {"lr": 1e-2, "eps": 1e-3, **options}
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **settings)


def zero_redundancy(rank):
    for options in ({}, {"parameters_as_bucket_view": True}):

        def run(model, options=options):
            model = DDP(model, gradient_as_bucket_view=bool(options))
            return model, train(model, zero(model, **options), rank)

        compare(rank, f"ZeroRedundancyOptimizer {options}", run)


def zero_redundancy_loaded(rank):
    def run(model):
        model = DDP(model)
        optimizer = zero(model)
        losses = train(model, optimizer, rank, steps=2)
        optimizer.consolidate_state_dict(0)
        state = [copy.deepcopy(optimizer.state_dict()) if rank == 0 else None]
        dist.broadcast_object_list(state, 0)
        again = zero(model)
        again.load_state_dict(state[0])
        return model, losses + train(model, again, rank, steps=2)

    compare(rank, "ZeroRedundancyOptimizer, loaded", run)


def zero_redundancy_uneven(rank):
    def run(model):
        model = DDP(model)
        optimizer = zero(model)
        with Join([model, optimizer]):
            return model, train(model, optimizer, rank, steps=3 + rank)

    compare(rank, "ZeroRedundancyOptimizer, uneven", run)


def on_two_processes(rank):
    gradients_come_in_order(rank)
    power_sgd_draws_the_same(rank)
    local_sgd(rank)
    zero_redundancy(rank)
    zero_redundancy_loaded(rank)
    zero_redundancy_uneven(rank)


@pytest.mark.matrix
def test_hooks_and_optimizers_of_many_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path))
    in_two_processes(on_two_processes)

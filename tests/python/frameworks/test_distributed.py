"""Two processes over gloo: DistributedDataParallel."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402
from two_processes import assert_same_state, in_two_processes  # noqa: E402

from steep import ORTModule  # noqa: E402


class Net(nn.Module):
    """With running statistics, which are handed out, and a layer that some steps do not use."""

    def __init__(self, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.some = nn.Linear(width, width)
        self.last = nn.Linear(width, 4)
        self.all = True

    def forward(self, x):
        x = torch.tanh(self.norm(self.first(x)))
        return self.last(self.some(x) if self.all else x)


def batch(step, rank):
    generator = torch.Generator().manual_seed(2 * step + rank)
    return torch.randn(4, 8, generator=generator), torch.randn(4, 4, generator=generator)


def train(model, rank, steps=4, accumulate=False, partly=False):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        x, y = batch(step, rank)
        model.module.all = not partly or step % 2 == 0
        waits = model.no_sync() if accumulate and step % 2 == 0 else contextlib.nullcontext()
        with waits:
            F.mse_loss(model(x), y).backward()
        if not (accumulate and step % 2 == 0):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


MODES = {
    "plain": ({}, {}),
    "views of buckets": ({"gradient_as_bucket_view": True}, {}),
    "small buckets": ({"bucket_cap_mb": 0.0005}, {}),
    "static graph": ({"static_graph": True}, {}),
    "unused parameters": ({"find_unused_parameters": True}, {"partly": True}),
    "accumulation": ({}, {"accumulate": True}),
    "own statistics": ({"broadcast_buffers": False}, {}),
}


def compare_modes(rank):
    for name, (options, habits) in MODES.items():
        ours, theirs = DDP(ORTModule(Net()), **options), DDP(Net(), **options)
        for model in (ours, theirs):
            train(model, rank, **habits)
        assert_same_state(ours, theirs, name)
        assert ours.module.report().whole and ours.module.report().graphs, name


def compare_hooks(rank):
    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        ours, theirs = DDP(ORTModule(Net())), DDP(Net())
        for model in (ours, theirs):
            model.register_comm_hook(None, hook)
            train(model, rank)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            tolerance = 1e-6 if hook is default_hooks.allreduce_hook else 1e-3
            torch.testing.assert_close(p, q, rtol=1e-5, atol=tolerance)


def compare_uneven(rank):
    """One process has a batch more than the other."""
    ours, theirs = (
        DDP(ORTModule(Net()), broadcast_buffers=False),
        DDP(Net(), broadcast_buffers=False),
    )
    for model in (ours, theirs):
        with model.join():
            train(model, rank, steps=3 + rank)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def data_parallel(rank):
    compare_modes(rank)
    compare_hooks(rank)
    compare_uneven(rank)


def test_distributed_data_parallel_in_all_modes():
    in_two_processes(data_parallel)

"""Two processes over gloo: DistributedDataParallel, and layers that split their weights."""

import contextlib
import socket
import traceback

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from steep import ORTModule  # noqa: E402


def in_two_processes(work):
    """Run ``work(rank)`` in both; fail with what either raises."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    failures = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_in_one, (port, failures, work), nprocs=2)
    assert failures.empty(), failures.get()


def _in_one(rank, port, failures, work):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        work(rank)
    except BaseException:
        failures.put(traceback.format_exc())
        raise
    dist.destroy_process_group()


def assert_same_state(found, expected, what):
    states = found.state_dict(), expected.state_dict()
    assert list(states[0]) == list(states[1])
    for name, value in states[1].items():
        torch.testing.assert_close(
            states[0][name], value, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{what}: {n}: {m}"
        )


# --- DistributedDataParallel ----------------------------------------------------------------------


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


def compare_buckets(rank):
    """A graph for each bucket, whose gradients leave while those below it are computed."""
    ours, theirs = (DDP(wrap(Net(600)), bucket_cap_mb=1) for wrap in (ORTModule, nn.Module.train))
    for model in (ours, theirs):
        train(model, rank, steps=2)
    assert_same_state(ours, theirs, "many buckets")
    assert ours.module.report().whole


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
    compare_buckets(rank)
    compare_hooks(rank)
    compare_uneven(rank)


def test_distributed_data_parallel_in_all_modes():
    in_two_processes(data_parallel)


# --- layers that split their weights --------------------------------------------------------------


class Copy(torch.autograd.Function):
    """The same to all; gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    """The sum over all; gradients are the same for all."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Gather(torch.autograd.Function):
    """All columns; each gets the gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(2, -1)[dist.get_rank()].contiguous()


class Column(nn.Module):
    """Half of a layer's outputs."""

    def __init__(self, whole, gather=False):
        super().__init__()
        rank, self.gather = dist.get_rank(), gather
        self.weight = nn.Parameter(whole.weight.detach().chunk(2)[rank].clone())
        self.bias = nn.Parameter(whole.bias.detach().chunk(2)[rank].clone())

    def forward(self, x):
        y = F.linear(Copy.apply(x), self.weight, self.bias)
        return Gather.apply(y) if self.gather else y


class Row(nn.Module):
    """The part of a layer's outputs that half of its inputs give."""

    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(2, 1)[dist.get_rank()].clone())
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x):
        return Reduce.apply(F.linear(x, self.weight)) + self.bias


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(x)


class Split(nn.Module):
    forward = Whole.forward

    def __init__(self):
        super().__init__()
        whole = Whole()
        self.norm = whole.norm
        self.up, self.down = Column(whole.up), Row(whole.down)
        self.head = Column(whole.head, gather=True)


def half(name, value, rank):
    """What of a whole parameter a process has."""
    if name in ("up.weight", "up.bias", "head.weight", "head.bias"):
        return value.chunk(2)[rank]
    return value.chunk(2, 1)[rank] if name == "down.weight" else value


def tensor_parallel(rank):
    split, plain, whole = ORTModule(Split()), Split(), Whole()
    for model in (split, plain, whole):
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(4):
            x, y = batch(step, 0)  # the same for both
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same_state(split, plain, "layers that split their weights")
    for name, value in whole.state_dict().items():
        found = split.state_dict()[name]
        torch.testing.assert_close(found, half(name, value, rank), rtol=1e-5, atol=1e-6)
    assert split.report().graphs


def test_column_and_row_parallel_layers():
    in_two_processes(tensor_parallel)

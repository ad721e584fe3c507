"""DistributedDataParallel: gradients leave in buckets while backward computes those below."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402
from two_processes import assert_same_state, in_two_processes  # noqa: E402

from steep import ORTModule  # noqa: E402
from steep.graph import autograd_node  # noqa: E402

WIDTH = 12
A_LAYER = {"bucket_cap_mb": 4 * WIDTH * WIDTH / 2**20}


class Deep(nn.Module):
    """Layers of a bucket each."""

    def __init__(self, width=WIDTH):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        return torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x))))))


# --- what crosses from graph to graph -------------------------------------------------------------


class Written(Deep):
    """A tensor of the first graph, and views of it, that others write."""

    def forward(self, x):
        x = self.a(x).clone()
        seen = x.view(-1, 3, 4)
        y = self.b(x.clone())
        seen.mul_(2.0)
        x[:, :6].add_(y[:, :6])
        return self.c(x) + seen.flatten(1)


class Stateful(Deep):
    """Buffers that graphs write and others read."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        x = torch.tanh(self.a(x))
        self.calls += 1
        x = self.norm(torch.tanh(self.b(x)))
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return self.c(x - self.mean) * self.calls.clamp(max=2)


class Stopped(Deep):
    """More than a bucket without gradients: no graph may end there."""

    def forward(self, x):
        x = torch.tanh(self.a(x))
        with torch.no_grad():
            y = torch.tanh(self.c(torch.tanh(self.b(x))))
        return self.c(self.b(x) * y)


class Tied(Deep):
    """A weight whose gradient is complete at the very end."""

    def __init__(self):
        super().__init__()
        self.c.weight = self.a.weight


class Lengths(Deep):
    """Extents that graphs hand on."""

    def forward(self, x):
        rows = x.shape[0]
        x = torch.tanh(self.b(torch.ones(rows, rows).tril() @ self.a(x)))
        return self.c(torch.cat([x, x[: rows // 2]]))[:rows] / rows


# --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def backwards_of_the_engine(log):
    """Within, the log is told of each graph whose backward is done."""
    plain = autograd_node.EngineFunction.backward

    def backward(ctx, *gradients):
        result = plain(ctx, *gradients)
        log.append("graph")
        return result

    autograd_node.EngineFunction.backward = staticmethod(backward)
    try:
        yield
    finally:
        autograd_node.EngineFunction.backward = staticmethod(plain)


def mean_of(log, bucket):
    log.append("bucket")
    sent = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
    return sent.get_future().then(lambda done: done.value()[0])


def trained(model, rank, width=WIDTH, accumulate=False, rows=(4, 4, 4, 4)):
    """Return the order of the last backward, when PyTorch knows in what order gradients come."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    log = []
    model.register_comm_hook(log, mean_of)
    with backwards_of_the_engine(log):
        for step, count in enumerate(rows):
            generator = torch.Generator().manual_seed(2 * step + rank)
            x = torch.randn(count, width, generator=generator)
            waits = accumulate and step % 2 == 0
            with model.no_sync() if waits else contextlib.nullcontext():
                loss = model(x).square().mean()
                log.clear()
                loss.backward()
            assert not (waits and "bucket" in log)
            if not waits:
                optimizer.step()
                optimizer.zero_grad()
    return log


MODES = {
    "plain": {},
    "views of buckets": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
    "accumulation": {},
}


def leave_in_all_modes(rank):
    for name, options in MODES.items():
        habits = {"accumulate": name == "accumulation"}
        ours, theirs = DDP(ORTModule(Deep()), **A_LAYER, **options), DDP(Deep(), **A_LAYER)
        log = trained(ours, rank, **habits)
        trained(theirs, rank, **habits)
        assert_same_state(ours, theirs, name)
        # The first leaves when a third is computed. Were it one graph, all would be last.
        assert log == ["graph", "bucket"] * 3, f"{name}: {log}"
        assert ours.module.report().whole, name


def leave_in_buckets_of_common_size(rank):
    log = trained(DDP(ORTModule(Deep(520))), rank, width=520)  # the first is of a mebibyte
    assert log[:2] == ["graph", "bucket"] and log.count("graph") > 1, log


def mean_the_same_cut(rank):
    for kind in (Written, Stateful, Stopped, Tied, Lengths):
        ours = DDP(ORTModule(kind(), fallback=None), **A_LAYER)
        theirs = DDP(kind(), **A_LAYER)
        rows = (4, 6, 5) if kind is Lengths else (4, 4, 4)
        log = trained(ours, rank, rows=rows)
        trained(theirs, rank, rows=rows)
        assert_same_state(ours, theirs, kind.__name__)
        assert log.count("graph") > 1, kind.__name__


def on_two_processes(rank):
    leave_in_all_modes(rank)
    leave_in_buckets_of_common_size(rank)
    mean_the_same_cut(rank)


@pytest.mark.matrix
def test_gradients_leave_during_backward(tmp_path, monkeypatch):
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path))  # the same graphs in many modes
    in_two_processes(on_two_processes)

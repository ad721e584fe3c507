"""FSDP2: parameters are gathered before a module runs, freed after it, and gathered elsewhere."""

import socket

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from steep import ORTModule  # noqa: E402


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 16), nn.GELU()), nn.Linear(16, 4)
    )


def sharded(how):
    """The network, and itself as FSDP2 runs it."""
    net = network()
    if how == "around":
        return net, fully_shard(ORTModule(net))
    for i in (0, 2, 3):  # these give their parameters back after forward
        net[i] = fully_shard(ORTModule(net[i]))
    return net, fully_shard(net)


def train(rank, port, failures):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for how in ("around", "blocks"):
        expected = network()
        net, run = sharded(how)
        optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (run, expected)]
        for step in range(3):
            torch.manual_seed(step)
            x = torch.randn(4, 8)
            run(x[2 * rank : 2 * rank + 2]).square().mean().backward()
            expected(x).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for (name, p), q in zip(net.named_parameters(), expected.parameters(), strict=True):
            if not torch.allclose(p.full_tensor().detach(), q, rtol=1e-5, atol=1e-6):
                failures.put((how, name))
    dist.destroy_process_group()


def test_two_processes_train_as_one():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    failures = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, (port, failures), nprocs=2)
    assert failures.empty(), failures.get()

"""The processes of PyTorch's default group, for the engine's ``DataParallel``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from steep import _steep
from steep.parallel.peers import ensure_group


class TorchPeers(_steep.Peers):
    """The operations of ``steep::Peers`` on memory of the engine, which is used in place."""

    def __init__(self) -> None:
        """Join the default group; raise as ``ensure_group``."""
        ensure_group()
        super().__init__(dist.get_rank(), dist.get_world_size())

    def gather_bytes(self, own: memoryview, every: memoryview) -> None:
        """Fill ``every`` with the bytes of each process, in the order of ranks."""
        rows = torch.frombuffer(every, dtype=torch.uint8).view(self.size, -1)
        dist.all_gather(list(rows), _to_send(own))

    def sum(self, values: memoryview, dtype: str) -> None:
        """Replace numbers by their sums over all processes."""
        dist.all_reduce(torch.frombuffer(values, dtype=getattr(torch, dtype)))

    def broadcast(self, values: memoryview, rank: int) -> None:
        """Replace bytes by those of the process ``rank``."""
        dist.broadcast(torch.frombuffer(values, dtype=torch.uint8), src=rank)

    def exchange(self, out: memoryview, to: int, into: memoryview, rank: int) -> None:
        """Send bytes to a process and receive others from ``rank``, at the same time."""
        works = []
        if len(into):
            works.append(dist.irecv(torch.frombuffer(into, dtype=torch.uint8), rank))
        if len(out):
            works.append(dist.isend(_to_send(out), to))
        for work in works:
            if work is not None:  # None: this process is not in the group
                work.wait()


def _to_send(memory: memoryview) -> torch.Tensor:
    """Return a copy: PyTorch has no tensors that only read."""
    return torch.frombuffer(bytearray(memory), dtype=torch.uint8)

"""The processes of PyTorch's default group, by the public interface of ``torch.distributed``.

Processes exchange numbers and text only; nothing that is received is executed.
"""

from __future__ import annotations

import atexit
import contextlib
import os

import torch
import torch.distributed as dist

from steep import _steep
from steep.errors import ProviderError

# variables that init_process_group() reads
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class TorchPeers(_steep.Peers):
    """The operations of ``steep::Peers`` on memory of the engine, which is used in place."""

    any_thread = True  # gradients are exchanged beside backward

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


def ensure_group() -> None:
    """Create the default group, with gloo, if there is none.

    Raises:
        ProviderError: no launcher started this process; the others cannot be reached; the group's
            backend has no collectives for CPU tensors.
    """
    if not dist.is_available():
        raise ProviderError(
            "This build of PyTorch has no torch.distributed.",
            expected="a build with distributed support",
            received=f"PyTorch {torch.__version__}",
        )
    if not dist.is_initialized():
        _start()
    if dist.get_backend() == dist.Backend.NCCL:
        raise ProviderError(
            "The default process group cannot exchange tensors of the CPU.",
            expected="backend gloo or mpi",
            received="backend nccl",
            remedy='torch.distributed.init_process_group("cpu:gloo,cuda:nccl")',
        )


def _start() -> None:
    missing = [name for name in _LAUNCHED if name not in os.environ]
    if missing:
        raise ProviderError(
            "No launcher started this process, so there are no other processes to train with.",
            expected="a process group of torch.distributed, or the variables of a launcher",
            received=f"neither; missing: {', '.join(missing)}",
            remedy="start the script by: torchrun --nproc-per-node 2 script.py",
        )
    try:
        dist.init_process_group("gloo")
        # Its threads must not outlive the interpreter, which would abort the process.
        atexit.register(_leave)
    except (RuntimeError, ValueError) as e:
        raise ProviderError(
            "The processes could not connect to each other.",
            expected=", ".join(f"{name}={os.environ[name]}" for name in _LAUNCHED),
            received=str(e).splitlines()[0],
            remedy="start all of them by torchrun, which sets these variables",
        ) from e


def _leave() -> None:
    """Leave the group that ``_start`` made; a lost process makes no difference any more."""
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()

"""The processes of a group, by the public interface of ``torch.distributed``.

Processes exchange numbers and text only; nothing that is received is executed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from steep.errors import ProviderError

_BUCKET_BYTES = 25 << 20  # of one collective, as DistributedDataParallel's default
# variables that init_process_group() reads
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Peers:
    """The default process group. All of its processes call the same methods in the same order.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.

    Each method raises ProviderError if a process is lost; from then on all methods do.
    """

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()
        self._failure = ""

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of each process, in the order of ranks; all must pass equally many."""
        own = torch.tensor(numbers, dtype=torch.float64)
        every = [torch.empty_like(own) for _ in range(self.size)]
        with self._together():
            dist.all_gather(every, own)
        return [numbers.tolist() for numbers in every]

    def gather_texts(self, text: str) -> list[str]:
        """Return the text of each process, in the order of ranks."""
        own = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        extents = [int(extent) for (extent,) in self.gather([own.numel()])]
        buffer = torch.zeros(max(extents), dtype=torch.uint8)
        buffer[: own.numel()] = own
        every = [torch.empty_like(buffer) for _ in range(self.size)]
        with self._together():
            dist.all_gather(every, buffer)
        return [
            bytes(t[: extent - 1].tolist()).decode()
            for t, extent in zip(every, extents, strict=True)
        ]

    def add(self, tensors: Sequence[torch.Tensor], factor: float) -> None:
        """Replace tensors by the sum over all processes of tensor times ``factor``.

        Each process has its own factor.
        """
        for bucket in _buckets(tensors):
            with self._in_one(bucket) as flat:
                dist.all_reduce(flat.mul_(factor))

    def copy_from(self, rank: int, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors by those of the process ``rank``."""
        for bucket in _buckets(tensors):
            with self._in_one(bucket) as flat:
                dist.broadcast(flat.view(torch.uint8), src=rank)

    @contextlib.contextmanager
    def _in_one(self, bucket: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield one flat tensor with the elements of a bucket; copy them back at the end."""
        alone = len(bucket) == 1 and bucket[0].is_contiguous()
        with torch.no_grad(), self._together():
            flat = bucket[0].view(-1) if alone else torch.cat([t.reshape(-1) for t in bucket])
            yield flat
            if alone:
                return
            for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
                tensor.copy_(part.view(tensor.shape))

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        if self._failure:
            raise ProviderError(
                "The connection between the processes was lost; no weight was changed.",
                node=f"rank {self.rank}",
                received=self._failure,
                remedy="start all processes again, from the last checkpoint",
            )
        self._failure = "an exchange that was interrupted"
        try:
            yield
        except (RuntimeError, ValueError) as e:  # ValueError: the group was destroyed
            self._failure = str(e).splitlines()[0]
            raise ProviderError(
                "Another process of this training ended or cannot be reached.",
                node=f"rank {self.rank}",
                expected=f"{self.size} processes",
                received=self._failure,
                remedy="look at the output of the other processes for the cause; then start all "
                "again, from the last checkpoint",
            ) from e
        self._failure = ""


def connect() -> Peers:
    """Return the processes of the default group; raise as ``ensure_group``."""
    ensure_group()
    return Peers()


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


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Divide tensors into lists of one dtype; lists of several have at most 25 MiB."""
    kinds: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() > 0:
            kinds.setdefault(tensor.dtype, []).append(tensor)
    for kind in kinds.values():
        bucket: list[torch.Tensor] = []
        extent = 0
        for tensor in kind:
            if bucket and extent + tensor.nbytes > _BUCKET_BYTES:
                yield bucket
                bucket, extent = [], 0
            bucket.append(tensor)
            extent += tensor.nbytes
        yield bucket

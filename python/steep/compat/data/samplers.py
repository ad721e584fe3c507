"""Samplers that give the processes of a distributed run batches of similar cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import distributed
from torch.utils.data import Sampler


class _Items(Protocol):
    """A dataset with a length and items."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class LoadBalancingDistributedSampler(Sampler[int]):
    """Indices of a dataset for one of several processes, which get samples of similar cost.

    Samples are sorted by their complexity, and neighbours go to different processes. Then each
    process goes through its samples in a random order, which is the same in all processes.

    Args:
        dataset: a dataset with a length and items.
        complexity_fn: returns an item's cost, an integer: its length, for instance.
        world_size, rank: of the processes; by default the distributed group's.
        shuffle: use a random order.
        group_size: sort only within groups of so many neighbours, and shuffle the groups.
        seed: seed of random numbers, together with the epoch; the same in all processes.
        drop_last: leave out samples that do not divide evenly, instead of repeating some.
        random_level: 0 to 1: amount of random noise in sorting, relative to the range of
            complexities.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(  # noqa: PLR0917 (ONNX Runtime's order)
        self,
        dataset: _Items,
        complexity_fn: Callable[[Any], int],
        world_size: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        group_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0.0,
    ) -> None:
        self.world_size = distributed.get_world_size() if world_size is None else world_size
        self.rank = distributed.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in [0, {self.world_size}), not {self.rank}")
        if not 0 <= random_level <= 1:
            raise ValueError(f"random_level must be in [0, 1], not {random_level}")
        if group_size is not None and group_size < 1:
            raise ValueError(f"group_size must be at least 1, not {group_size}")
        self.dataset, self.shuffle, self.group_size = dataset, shuffle, group_size
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0
        self._complexity, self._random_level = complexity_fn, random_level
        self._complexities: list[int] | None = None
        count: int = len(dataset)
        self.num_samples = (
            count // self.world_size if drop_last else math.ceil(count / self.world_size)
        )

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, so that the next iteration has another random order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([alike[self.rank] for alike in self.rows()])

    def rows(self) -> list[list[int]]:
        """Return the indices of all processes: rows of similar samples, one for each process."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = self._sort(generator)
        total = self.num_samples * self.world_size
        order = [order[i % len(order)] for i in range(total)] if order else []
        rows = [order[i : i + self.world_size] for i in range(0, total, self.world_size)]
        if self.shuffle and self.group_size is None:
            rows = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
        return rows

    def _sort(self, generator: torch.Generator) -> list[int]:
        if self._complexities is None:
            items = range(len(self.dataset))
            self._complexities = [int(self._complexity(self.dataset[i])) for i in items]
        costs = self._complexities
        if self._random_level and costs:
            most = int((max(costs) - min(costs)) * self._random_level) + 1
            noise = torch.randint(most, (len(costs),), generator=generator).tolist()
            costs = [cost + more for cost, more in zip(costs, noise, strict=True)]
        size = self.group_size or max(1, len(costs))
        starts = range(0, len(costs), size)
        groups = [
            sorted(range(start, min(start + size, len(costs))), key=costs.__getitem__)
            for start in starts
        ]
        if self.shuffle and self.group_size is not None:
            groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
        return [i for group in groups for i in group]


class LoadBalancingDistributedBatchSampler(Sampler[list[int]]):
    """Batches of any sizes, equally many in each process.

    Args:
        sampler: sampler of the indices, with ``drop_last=False``.
        batch_fn: makes batches (lists of indices) from a process's indices.
        drop_last: drop batches that other processes do not have, instead of repeating some.

    Raises:
        ValueError: the sampler is not a ``LoadBalancingDistributedSampler``, or drops samples.
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: Callable[[list[int]], Sequence[list[int]]],
        drop_last: bool = False,
    ) -> None:
        if not isinstance(sampler, LoadBalancingDistributedSampler) or sampler.drop_last:
            raise ValueError(
                "sampler must be a LoadBalancingDistributedSampler whose drop_last is False"
            )
        self.sampler, self.batch_fn, self.drop_last = sampler, batch_fn, drop_last
        self._made_for: int | None = None  # epoch of _batches
        self._batches: list[list[int]] = []

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, so that the next iteration has another random order."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._make_batches())

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._make_batches())

    def _make_batches(self) -> list[list[int]]:
        """Return this process's batches; to count batches, each process makes those of all."""
        if self._made_for == self.sampler.epoch:
            return self._batches
        rows = self.sampler.rows()
        ranks = range(self.sampler.world_size)
        of_all = [list(self.batch_fn([row[rank] for row in rows])) for rank in ranks]
        lengths = [len(batches) for batches in of_all]
        own = of_all[self.sampler.rank]
        count = min(lengths) if self.drop_last else max(lengths)
        self._batches = [own[i % len(own)] for i in range(count)] if own else []
        self._made_for = self.sampler.epoch
        return self._batches

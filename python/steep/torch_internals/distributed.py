"""PyTorch's DistributedDataParallel and its buckets."""

from __future__ import annotations

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

__all__ = ["active_ddp_module", "first_bucket_bytes"]


def active_ddp_module() -> DistributedDataParallel | None:
    """Return the DistributedDataParallel whose forward runs, if there is one."""
    module: DistributedDataParallel | None = DistributedDataParallel._get_active_ddp_module()
    return module


def first_bucket_bytes() -> int:
    """Return the size of the first bucket in bytes; a function, since a substitution changes it."""
    return int(dist._DEFAULT_FIRST_BUCKET_BYTES)

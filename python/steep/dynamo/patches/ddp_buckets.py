"""One graph for each bucket of a DistributedDataParallel.

PyTorch's ``DDPOptimizer`` cuts a captured graph where a bucket's parameters end. Each part is a
graph of its own in the engine, so that gradients are reduced while backward continues.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from steep.graph.partition import within
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.distributed import active_ddp_module, first_bucket_bytes
from steep.torch_internals.dynamo import distributed

FIRST_BUCKET = Substitution(
    dist,
    "_DEFAULT_FIRST_BUCKET_BYTES",
    "PyTorch takes the first bucket for one of a mebibyte, and fails where the others are smaller.",
)
HAS_OUTPUT = Substitution(
    distributed,
    "bucket_has_external_output",
    "A bucket may not end within a mode (gradients, autocast) or a transform of functions.",
)


@replaces(FIRST_BUCKET, HAS_OUTPUT)
def buckets() -> Iterator[None]:
    """Let ``DDPOptimizer`` cut by buckets of any size, but only where a graph may end.

    PyTorch assumes that the first bucket has one mebibyte, and fails if the others are smaller.
    Operations inside a mode (gradients, autocast) or a function transform cannot be separated from
    it: a bucket then extends to the start of that region.
    """
    around = active_ddp_module()
    if around is None:
        yield
        return
    first = min(first_bucket_bytes(), around.bucket_bytes_cap)
    may_end = distributed.bucket_has_external_output
    inside: dict[torch.fx.Graph, set[str]] = {}

    def may_end_outside(bucket: distributed.Bucket) -> bool:
        lowest: torch.fx.Node = bucket.nodes[-1]  # collected from the graph's end
        if lowest.graph not in inside:
            inside[lowest.graph] = within(lowest.graph, torch.is_grad_enabled())
        return lowest.name not in inside[lowest.graph] and may_end(bucket)

    with substitute(
        {
            FIRST_BUCKET: first,
            HAS_OUTPUT: may_end_outside,
        }
    ):
        yield

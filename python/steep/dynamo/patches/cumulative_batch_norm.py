"""Batch normalisation whose running statistics are means over all batches (``momentum=None``)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.nn import BatchNorm, check_input_dim

FORWARD = Substitution(
    BatchNorm,
    "forward",
    "With `momentum=None` PyTorch makes a Python number of the count of batches, which ends "
    "the graph.",
)

_plain = BatchNorm.forward


@replaces(FORWARD)
def means_over_batches(module: torch.nn.Module) -> Iterator[None]:
    """Keep the number of earlier batches a tensor, so that a graph is valid for any number.

    PyTorch turns this count into a Python number, which breaks the graph. In a ``Sequential``,
    whose loop cannot be resumed, PyTorch would then run the whole module.
    """
    kinds = (m for m in module.modules() if isinstance(m, BatchNorm))
    if any(m.momentum is None for m in kinds):
        with substitute({FORWARD: _forward}):
            yield
    else:
        yield


def _forward(self: BatchNorm, input: torch.Tensor) -> torch.Tensor:
    tracked = self.training and self.track_running_stats and self.num_batches_tracked is not None
    # another thread may run a layer while this one captures
    capturing = torch.compiler.is_dynamo_compiling()
    if self.momentum is not None or not tracked or not capturing:
        return _plain(self, input)
    check_input_dim(self, input)
    self.num_batches_tracked.add_(1)
    share = 1.0 / self.num_batches_tracked
    mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    # with a momentum of 1 the running statistics become those of this batch
    result = F.batch_norm(input, mean, var, self.weight, self.bias, True, 1.0, self.eps)
    self.running_mean.mul_(1 - share).add_(mean * share)
    self.running_var.mul_(1 - share).add_(var * share)
    return result

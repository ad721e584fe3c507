"""A captured graph as a step, and the parts that its tensors have in a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from steep import _steep

if TYPE_CHECKING:
    from steep.graph.lowered import LoweredGraph


_CONVERTED = {(torch.float64, torch.float32), (torch.int32, torch.int64)}  # of data, as in sessions


class StepCompiled(Exception):
    """Raised after compilation if the step should not run.

    An exception, since the code that Dynamo runs after the graph must not run either: it writes the
    attributes that forward changes, such as a count of calls. There was no step to count.
    """


@dataclasses.dataclass(frozen=True)
class Roles:
    """Maps the arguments and results of a captured graph to the states and inputs of a session."""

    lowered: LoweredGraph | None = None
    loss: int = 0  # position of the loss among lowered.values
    # (position in a call, tensor in the session, its address)
    bindings: Sequence[tuple[int, torch.Tensor, int]] = ()
    input_positions: Sequence[int] = ()  # positions of the call's tensors that are session inputs
    targets: Sequence[int] = ()  # arguments to which the session's first outputs are copied
    types: Sequence[torch.Tensor] = ()  # meta tensors like the session's inputs
    # the model's names → the session's, of trained parameters and of buffers that steps write
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    statistics: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def hold(self, lowered: LoweredGraph, tensors: list[torch.Tensor]) -> bool:
        """Return whether the session is of this graph, and its states are these tensors."""
        return lowered is self.lowered and all(
            tensors[i] is tensor and tensor.data_ptr() == pointer
            for i, tensor, pointer in self.bindings
        )


class CapturedStep:
    """A captured graph, which the trainer runs as a step."""

    def __init__(
        self, lowered: LoweredGraph, run: Callable[[LoweredGraph, tuple[Any, ...]], object]
    ) -> None:
        if lowered.checks:  # the engine would have updated weights before the check
            raise RuntimeError("forward raises an error that depends on values")
        self.lowered = lowered
        self.run = run

    def __call__(self, *arguments: object) -> object:
        """Run the step with the arguments of a call of the graph."""
        return self.run(self.lowered, arguments)


def convert_data(t: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """Return data in the dtype of the first step's. Raises DataError if a number does not fit."""
    if (t.dtype, dtype) not in _CONVERTED:
        return t
    return torch.from_dlpack(_steep.convert(t.detach(), str(dtype).removeprefix("torch."), name))

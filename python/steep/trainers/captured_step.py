"""A captured graph as a step, and the parts that its tensors have in a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version

from steep import _steep
from steep.errors import DataError, counted

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
    # parameters that are not contiguous, each with the session's copy
    apart: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
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

    def read_weights(self) -> None:
        """Take over parameters whose memory is not the session's."""
        for parameter, copy in self.apart:
            copy.copy_(parameter.detach())

    def note_writes(self, *, weights: bool) -> None:
        """Count what a step wrote as writes of PyTorch, whose versions of tensors do not see them.

        So a backward that needs a former value raises PyTorch's error. Parameters whose memory is
        not the session's get their new values.

        Args:
            weights: whether it wrote weights, and not only other states.
        """
        for parameter, copy in self.apart if weights else ():
            parameter.detach().copy_(copy)
        written = [t for _, t, _ in self.bindings if weights or not t.requires_grad]
        increment_version([t for t in written if not t.is_inference()])


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


def like_the_first(
    inputs: Sequence[Any], first: Sequence[torch.Tensor], has_float64: Callable[[], bool]
) -> list[torch.Tensor]:
    """Check the inputs, and convert data as sessions do: float64 to float32, int32 to int64.

    Args:
        inputs: of a step.
        first: tensors like those of the first step; empty before it.
        has_float64: whether the model has parameters of float64, as after ``double()``.

    Raises:
        DataError: an input is no tensor, there are more or fewer than in the first step, or a
            number does not fit.
    """
    for i, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise DataError(
                "An input is not a tensor.",
                node=f"input {i}",
                expected="a torch.Tensor",
                received=f"a {type(value).__module__}.{type(value).__qualname__}",
                remedy="convert it with torch.as_tensor",
            )
    if not first:
        return list(inputs)
    if len(inputs) != len(first):
        raise DataError(
            "The number of inputs is wrong.",
            expected=counted(len(first), "tensor"),
            received=counted(len(inputs), "tensor"),
        )
    return [
        t if t.dtype == torch.float64 and has_float64() else convert_data(t, f.dtype, f"input {i}")
        for i, (t, f) in enumerate(zip(inputs, first, strict=True))
    ]


def convert_data(t: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """Return data in the dtype of the first step's. Raises DataError if a number does not fit."""
    if (t.dtype, dtype) not in _CONVERTED:
        return t
    return torch.from_dlpack(_steep.convert(t.detach(), str(dtype).removeprefix("torch."), name))

"""What forward changes in place beside the values of a tensor: its shape, and its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from steep.patching.substitution import Substitution, replaces, substitute
from steep.patching.torch_versions import TENSOR_GETATTR
from steep.torch_internals.dynamo import (
    InstructionTranslatorBase,
    TensorVariable,
    TorchInGraphFunctionVariable as _Function,
    VariableTracker,
    unimplemented,
)
from steep.torch_internals.tensors import is_view, version_of

CALL_METHOD = Substitution(
    TensorVariable,
    "call_method",
    "After `x.unsqueeze_(0)` Dynamo answers `x.dim()` and `x.shape` as before; and after "
    "`x.detach_()` what was computed from `x` earlier seems to have no gradient.",
    order=2,
)
CALL_FUNCTION = Substitution(
    _Function,
    "call_function",
    "`torch.detach_(x)` changes a tensor as its method does.",
    order=4,
)
GET_ATTRIBUTE = Substitution(
    TensorVariable,
    TENSOR_GETATTR,
    "Dynamo answers `x.requires_grad` as before a write by another view of `x`.",
    order=1,
)

_RESHAPES = {"squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
_CHANGES = {"as_strided_", "detach_", *_RESHAPES}
_FUNCTIONS = {torch.detach_: "detach_", torch.as_strided_: "as_strided_"}


@replaces(CALL_METHOD, CALL_FUNCTION, GET_ATTRIBUTE)
def changed_tensors() -> Iterator[None]:
    """Follow changes of a tensor's shape and history.

    A method that changes them in place is traced as the one that returns a changed tensor, which
    the variable means from then on: the tensors of the graph stay what they were when they were
    made. If another variable may mean the same tensor, PyTorch runs the method between two graphs.
    """
    with substitute(
        {
            CALL_METHOD: _out_of_place(TensorVariable.call_method),
            CALL_FUNCTION: _by_method(_Function.call_function),
            GET_ATTRIBUTE: _up_to_date(getattr(TensorVariable, TENSOR_GETATTR)),
        }
    ):
        yield


def _up_to_date(call: Callable[..., VariableTracker]) -> Callable[..., VariableTracker]:
    def reading(
        self: VariableTracker, tx: InstructionTranslatorBase, name: str, *arguments: object
    ) -> VariableTracker:
        _refresh(self, tx)
        return call(self, tx, name, *arguments)

    return reading


def _refresh(tensor: VariableTracker, tx: InstructionTranslatorBase) -> None:
    """Let a variable know what its tensor is now, if the tensor or one of its views was written."""
    if type(tensor) is TensorVariable and version_of(tensor.as_proxy().node.meta["example_value"]):
        tensor.synchronize_attributes(tx)


def _out_of_place(call: Callable[..., VariableTracker]) -> Callable[..., VariableTracker]:
    def calling(
        self: VariableTracker,
        tx: InstructionTranslatorBase,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        _refresh(self, tx)
        if name not in _CHANGES or type(self) is not TensorVariable or self.source is not None:
            return call(self, tx, name, args, kwargs)
        example = self.as_proxy().node.meta["example_value"]
        if _is_refused(example, name):
            return call(self, tx, name, args, kwargs)
        if self.as_proxy().tracer is not tx.output.current_tracer or _has_other_names(self, tx):
            unimplemented(
                gb_type="a change in place of a tensor's shape or history",
                context=f"{self} {name}",
                explanation="other variables of forward may mean the same tensor",
                hints=[],
            )
        self.proxy = call(self, tx, name.removesuffix("_"), args, kwargs).as_proxy()
        self.synchronize_attributes(tx)
        return self

    return calling


def _is_refused(example: torch.Tensor, name: str) -> bool:
    """Return whether PyTorch raises an error in place of the change; Dynamo then meets it."""
    if name == "detach_":
        return is_view(example)
    return bool(example.is_leaf and example.requires_grad)


def _has_other_names(tensor: VariableTracker, tx: InstructionTranslatorBase) -> bool:
    """Return whether another operation returned the same tensor, as `x.add_(1)` does."""
    of = tensor.as_proxy().node
    nodes = tx.output.graph.nodes
    return any(
        n is not of and n.meta.get("example_value") is of.meta["example_value"] for n in nodes
    )


def _by_method(call: Callable[..., VariableTracker]) -> Callable[..., VariableTracker]:
    def calling(
        self: VariableTracker,
        tx: InstructionTranslatorBase,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        method = _FUNCTIONS.get(self.value)
        tensor = args[0].realize() if method is not None and args else None
        if method is not None and tensor is not None and type(tensor) is TensorVariable:
            return tensor.call_method(tx, method, [*args[1:]], kwargs)
        return call(self, tx, args, kwargs)

    return calling

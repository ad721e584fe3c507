"""Facts about model and loss that a trainer compares between the processes of a training."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from steep.errors import DataError, ModelError, ProviderError

if TYPE_CHECKING:
    import onnx

    from steep.parallel.data_parallel import DataParallel
    from steep.trainers.loss_module import WithLoss

_ADDRESS = re.compile(r"0x[0-9a-f]+")
# operators after a loss that do not change its reduction
_MOVES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
# Losses that are means over all elements of the label: extents of a row may differ between
# processes.
_OVER_ELEMENTS = (
    *(torch.nn.MSELoss, torch.nn.L1Loss, torch.nn.SmoothL1Loss, torch.nn.HuberLoss),
    *(torch.nn.BCELoss, torch.nn.BCEWithLogitsLoss, torch.nn.CrossEntropyLoss, torch.nn.NLLLoss),
)


def join(way: str) -> DataParallel:
    """Return this process's part of a training.

    Raises:
        ProviderError: ``way`` is not "torch"; or no launcher started this process, or the others
            cannot be reached.
    """
    if way != "torch":
        raise ProviderError(
            "The value of `parallel` is not supported.",
            node="parallel",
            expected='"torch", for the processes of torch.distributed',
            received=repr(way),
            remedy="steep.TrainingSession also has gloo and mpi",
        )
    from steep.parallel.data_parallel import DataParallel  # loads torch.distributed

    return DataParallel()


def describe(
    parallel: DataParallel,
    net: WithLoss,
    settings: Mapping[str, Any],
    groups: Sequence[tuple[Sequence[str], Any]],
    in_session: Collection[str],
) -> None:
    """Set the facts that must be the same in all processes.

    Graphs are not compared: those for other extents may differ.

    Args:
        parallel: gets the facts.
        net: model and loss.
        settings: options of the session.
        groups: names of parameters with their settings; the settings are compared at each step.
        in_session: names of the parameters and buffers that the session has.
    """
    from steep.parallel.data_parallel import (  # loads torch.distributed
        describe_versions,
        option_text,
    )

    tensors = dict(sorted((*net.named_parameters(), *net.named_buffers())))
    others = {name: tensor for name, tensor in tensors.items() if name not in in_session}
    first = not parallel.descriptions
    parallel.others = list(others.values())
    parallel.descriptions = {
        **describe_versions(),
        "model": _ADDRESS.sub("0x", f"{net.model}\nloss: {_name_of(net.criterion)}"),
        **{f"option {k}": option_text(v) for k, v in settings.items() if k != "providers"},
        "groups": str([sorted(names) for names, _ in groups]),
        **{f"tensor {n}": f"{t.dtype} {list(t.shape)}" for n, t in others.items()},
    }
    normalises = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    if first and any(isinstance(part, normalises) and part.training for part in net.modules()):
        parallel.warn_of_statistics()


def count_rows(
    criterion: Callable[..., Any] | None, inputs: Sequence[torch.Tensor]
) -> tuple[float, str]:
    """Return over how many elements this process's loss is the mean, and the shape of a row.

    The count is that of the label's elements; without a criterion, of the first input's rows. The
    shape is text, and "" if it may differ between processes.

    Raises:
        DataError: the count is 0.
    """
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    rows, form = 1, ""
    if criterion is not None and tensors:
        label = tensors[-1]
        rows = label.numel()
        form = "" if isinstance(criterion, _OVER_ELEMENTS) else f"{list(label.shape[1:])}"
    elif tensors and tensors[0].dim() > 0:
        rows = tensors[0].shape[0]
    if rows == 0:
        raise DataError(
            "A process has no rows in this step.",
            expected="a row at least",
            received=f"inputs of {[list(t.shape) for t in tensors]}",
            remedy="give each rank a row, or leave this batch out on all ranks",
        )
    return float(rows), form


def require_mean(model: onnx.ModelProto, loss: str) -> None:
    """Raise ModelError for a loss that is a sum: gradients are averaged over all processes' rows.

    Args:
        model: the captured graph.
        loss: name of its output.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers.get(loss)
    while node is not None and node.op_type in _MOVES:
        node = makers.get(node.input[0])
    if node is None:
        return
    reductions = [a.s for a in node.attribute if a.name == "reduction"]
    if node.op_type == "ReduceSum" or b"sum" in reductions:
        raise ModelError(
            "The loss is a sum, and processes that train together need a mean.",
            node=node.name,
            op=node.op_type,
            expected="a mean over rows or elements",
            received="a sum",
            remedy='use reduction="mean", and a learning rate to match',
        )


def _name_of(criterion: Callable[..., Any] | None) -> str:
    if isinstance(criterion, torch.nn.Module):
        return str(criterion)
    return getattr(criterion, "__qualname__", type(criterion).__name__)

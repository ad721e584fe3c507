"""Blocks of losses, each as PyTorch's class of the same name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike

from steep.compat.onnxblock.base import Block, at_hand, info_of, value_names
from steep.compat.onnxblock.blocks import Abs, InputLike, ReduceMean, ReduceSum, Sub, add_input
from steep.errors import DataError, ModelError


class _Loss(Block):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise DataError(
                "A loss has no such reduction.",
                expected='"mean", "sum" or "none"',
                received=repr(reduction),
            )
        self._reduction = reduction

    def _reduce(self, value: str) -> str:
        if self._reduction == "none":
            return value
        return str((ReduceMean if self._reduction == "mean" else ReduceSum)(keepdims=False)(value))

    def _target(self, scores: str, name: str) -> str:
        """Return the target's name; add an input like the scores if there is no such value."""
        return name if name in value_names(at_hand()) else str(InputLike(scores)(name))


class MSELoss(_Loss):
    """(output - target)², reduced by "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss, and an input for the target unless there is a value of that name."""
        apart = Sub()(loss_input_name, self._target(loss_input_name, target_name))
        return self._reduce(self.add_node("Mul", [apart, apart]))


class L1Loss(_Loss):
    """|output - target|, reduced by "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss, and an input for the target unless there is a value of that name."""
        target = self._target(loss_input_name, target_name)
        return self._reduce(Abs()(Sub()(loss_input_name, target)))


class CrossEntropyLoss(_Loss):
    """Cross entropy of scores, with classes on axis 1, and integer labels.

    Args:
        weight: an array with a factor for each class.
        reduction: "mean" (weighted), "sum" or "none".
        ignore_index: a label to ignore.
    """

    def __init__(
        self,
        weight: ArrayLike | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(reduction)
        self._weight, self._ignore_index = weight, ignore_index

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Add the loss, and an int64 input for labels unless there is a value of that name.

        Raises:
            ModelError: the scores' rank is not known, or below 2.
        """
        model = at_hand()
        if labels_name not in value_names(model):
            info = info_of(model, scores_input_name)
            has_shape = info is not None and info.type.tensor_type.HasField("shape")
            if info is None or not has_shape or len(info.type.tensor_type.shape.dim) < 2:
                raise ModelError(
                    "Cross entropy needs scores with the classes on axis 1.",
                    node=scores_input_name,
                    expected="a rank of 2 or more",
                    received="none that is known" if not has_shape else "less",
                    remedy="declare the shape of the output that the loss reads",
                )
            labels = onnx.ValueInfoProto()
            labels.CopyFrom(info)
            labels.type.tensor_type.elem_type = onnx.TensorProto.INT64
            del labels.type.tensor_type.shape.dim[1]
            add_input(model, labels_name, labels)
        operands = [scores_input_name, labels_name]
        if self._weight is not None:
            factors = np.asarray(self._weight, self.dtype_of(scores_input_name))
            operands.append(self.add_constant("celoss.weight", factors))
        settings: dict[str, Any] = {"reduction": self._reduction}
        if self._ignore_index is not None:
            settings["ignore_index"] = self._ignore_index
        return self.add_node("SoftmaxCrossEntropyLoss", operands, **settings)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of scores before the sigmoid.

    Args:
        weight: an array of factors whose shape broadcasts to that of the scores.
        reduction: "mean", "sum" or "none".
        pos_weight: an array of factors for positive targets.
    """

    def __init__(
        self,
        weight: ArrayLike | None = None,
        reduction: str = "mean",
        pos_weight: ArrayLike | None = None,
    ) -> None:
        super().__init__(reduction)
        self._weight, self._pos_weight = weight, pos_weight

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss, and an input for the target unless there is a value of that name."""
        # (1 - t) x + w log(1 + exp(-x)), with w = 1 + (p - 1) t; Softplus does not overflow
        x, dtype = loss_input_name, self.dtype_of(loss_input_name)
        target = self._target(x, target_name)
        one = self.add_constant("bceloss.one", np.array(1, dtype))
        linear = self.add_node("Mul", [Sub()(one, target), x])
        rest = self.add_node("Softplus", [self.add_node("Neg", [x])])
        if self._pos_weight is not None:
            more = self.add_constant("bceloss.pos_weight", np.asarray(self._pos_weight, dtype) - 1)
            factor = self.add_node("Add", [self.add_node("Mul", [more, target]), one])
            rest = self.add_node("Mul", [factor, rest])
        loss = self.add_node("Add", [linear, rest])
        if self._weight is not None:
            weight = self.add_constant("bceloss.weight", np.asarray(self._weight, dtype))
            loss = self.add_node("Mul", [weight, loss])
        return self._reduce(loss)

"""Blocks of optimizers: models of one step, in ONNX's own operators.

The inputs of such a model are ``learning_rate`` (float32) and ``step`` (int64, from 1), both
scalars; and for each trained parameter P: ``P`` itself, its gradient ``P_grad``, and moments
``NAME/P``. The output ``updated/X`` is the new value of the input X.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from steep.compat.onnxblock.base import Block, at_hand
from steep.compat.onnxblock.blocks import ReduceAllL2
from steep.compat.onnxblock.models import ForwardBlock, mark
from steep.errors import DataError

RATE, STEP = "learning_rate", "step"
UPDATED = "updated/"


def gradient_name(parameter: str) -> str:
    """Return the name of a parameter's gradient."""
    return f"{parameter}_grad"


class ClipGradNorm(Block):
    """Scales gradients so that their global norm is at most ``max_norm``.

    The factor is min(1, max_norm / (norm + 1e-6)), as in PyTorch.
    """

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        if not max_norm > 0:
            raise DataError("max_norm is not positive.", expected="above 0", received=str(max_norm))
        self._max_norm = max_norm

    def build(self, *gradients: str) -> list[str]:
        """Add the nodes; return the names of the scaled gradients."""
        norm = ReduceAllL2()(*gradients)
        small = self.add_constant("clip_epsilon", np.float32(1e-6))
        bound = self.add_constant("max_norm", np.float32(self._max_norm))
        one = self.add_constant("one", np.float32(1))
        ratio = self.add_node("Div", [bound, self.add_node("Add", [norm, small])])
        # Min propagates NaN, so that a NaN norm is not mistaken for a small one
        factor = self.add_node("Min", [ratio, one])
        like = [self.add_node("CastLike", [factor, gradient]) for gradient in gradients]
        return [self.add_node("Mul", pair) for pair in zip(gradients, like, strict=True)]


class _Optimizer(ForwardBlock):
    def __init__(self, clip_grad: ClipGradNorm | None = None) -> None:
        super().__init__()
        self._clip_grad = clip_grad

    def build(
        self, parameters: tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]]
    ) -> tuple[str, ...]:
        """Add a step of all trained parameters.

        Args:
            parameters: the result of ``TrainingBlock.parameters``: trained ones, and others.

        Returns:
            The names of the updated values.

        Raises:
            DataError: none is trained; or one is neither float32 nor float64, or has the name of
                another input of the model.
        """
        model, (trained, _) = at_hand(), parameters
        if not trained:
            raise DataError("An optimizer has nothing to train.", received="no trained parameters")
        names = [RATE, STEP, *(name for p in trained for name in (p.name, gradient_name(p.name)))]
        twice = sorted(name for name in set(names) if names.count(name) > 1)
        if twice:
            raise DataError(
                "A parameter has a name that means something else in an optimizer's model.",
                node=twice[0],
                expected=f"names beside {RATE}, {STEP} and P_grad of another parameter P",
                received=twice[0],
                remedy="rename the initializer",
            )
        mark(model, "optimizer")
        graph = model.graph
        graph.input.append(helper.make_tensor_value_info(RATE, TensorProto.FLOAT, []))
        graph.input.append(helper.make_tensor_value_info(STEP, TensorProto.INT64, []))
        for p in trained:
            if p.data_type not in (TensorProto.FLOAT, TensorProto.DOUBLE):
                raise DataError(
                    "A trained parameter has a dtype that the optimizer does not support.",
                    node=p.name,
                    expected="float32 or float64",
                    received=TensorProto.DataType.Name(p.data_type),
                )
            for name in (p.name, gradient_name(p.name)):
                graph.input.append(helper.make_tensor_value_info(name, p.data_type, p.dims))
        gradients = [gradient_name(p.name) for p in trained]
        if self._clip_grad is not None:
            gradients = self._clip_grad(*gradients)
        self.prepare()
        outputs = []
        for p, gradient in zip(trained, gradients, strict=True):
            for name, value in self.update(p, gradient).items():
                outputs.append(UPDATED + name)
                graph.node.append(helper.make_node("Identity", [value], [outputs[-1]]))
        return tuple(outputs)

    def prepare(self) -> None:
        """Add nodes that all parameters share."""

    @abstractmethod
    def update(self, parameter: onnx.TensorProto, gradient: str) -> dict[str, str]:
        """Add the step of a parameter; return the new value of each input that it updates."""

    def number(self, value: float, dtype: type = np.float64) -> str:
        """Add a scalar; return its name."""
        return self.add_constant("number", np.array(value, dtype))

    def moment(self, kind: str, parameter: onnx.TensorProto) -> str:
        """Add an input for a moment, which starts as zeros; return its name."""
        info = helper.make_tensor_value_info(
            f"{kind}/{parameter.name}", parameter.data_type, parameter.dims
        )
        at_hand().graph.input.append(info)
        name: str = info.name
        return name


class SGD(_Optimizer):
    """Stochastic gradient descent: w - lr g.

    Args:
        clip_grad: a ``ClipGradNorm``.
    """

    def update(self, parameter: onnx.TensorProto, gradient: str) -> dict[str, str]:
        """Add the step of a parameter; return its new value."""
        rate = self.add_node("Cast", [RATE], to=parameter.data_type)
        change = self.add_node("Mul", [rate, gradient])
        return {parameter.name: self.add_node("Sub", [parameter.name, change])}


class AdamW(_Optimizer):
    """AdamW as in transformers: epsilon is added to the root, and weights decay after the update.

    With moments m and v, corrected by c₁ = 1 - β₁ᵗ and c₂ = 1 - β₂ᵗ (both 1 without
    ``bias_correction``): w₁ = w - lr √c₂ / c₁ · m / (√v + eps), and then w₁ (1 - lr weight_decay).

    Args:
        bias_correction: correct moments for their start at zero.
        betas, eps, weight_decay: the numbers of these formulas.
        clip_grad: a ``ClipGradNorm``.
    """

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: ClipGradNorm | None = None,
    ) -> None:
        super().__init__(clip_grad)
        if not all(0 <= beta < 1 for beta in betas) or not eps >= 0 or not weight_decay >= 0:
            raise DataError(
                "A number of AdamW is out of range.",
                expected="betas in [0, 1), eps and weight_decay of 0 or more",
                received=f"betas {betas}, eps {eps}, weight_decay {weight_decay}",
            )
        self._bias_correction, self._betas = bias_correction, betas
        self._eps, self._weight_decay = eps, weight_decay
        self._rate = RATE

    def prepare(self) -> None:
        """Add the corrected rate, in float64: in float32 1 - 0.999 has only four digits."""
        self._rate = self.add_node("Cast", [RATE], to=TensorProto.DOUBLE)
        if self._bias_correction:
            t = self.add_node("Cast", [STEP], to=TensorProto.DOUBLE)
            one = self.number(1)
            first, second = (
                self.add_node("Sub", [one, self.add_node("Pow", [self.number(beta), t])])
                for beta in self._betas
            )
            root = self.add_node("Sqrt", [second])
            ratio = self.add_node("Div", [root, first])
            self._rate = self.add_node("Mul", [self._rate, ratio])

    def update(self, parameter: onnx.TensorProto, gradient: str) -> dict[str, str]:
        """Add the step of a parameter; return its new value and moments."""
        dtype = helper.tensor_dtype_to_np_dtype(parameter.data_type).type

        def scale(factor: float, value: str) -> str:
            return self.add_node("Mul", [self.number(factor, dtype), value])

        w, (beta1, beta2) = parameter.name, self._betas
        m, v = self.moment("momentum0", parameter), self.moment("momentum1", parameter)
        square = self.add_node("Mul", [gradient, gradient])
        new_m = self.add_node("Add", [scale(beta1, m), scale(1 - beta1, gradient)])
        new_v = self.add_node("Add", [scale(beta2, v), scale(1 - beta2, square)])
        root = self.add_node("Sqrt", [new_v])
        below = self.add_node("Add", [root, self.number(self._eps, dtype)])
        rate = self.add_node("Cast", [self._rate], to=parameter.data_type)
        change = self.add_node("Mul", [rate, self.add_node("Div", [new_m, below])])
        new_w = self.add_node("Sub", [w, change])
        if self._weight_decay:
            plain = self.add_node("Cast", [RATE], to=parameter.data_type)
            shrink = self.add_node("Mul", [plain, self.number(self._weight_decay, dtype)])
            decay = self.add_node("Mul", [shrink, new_w])
            new_w = self.add_node("Sub", [new_w, decay])
        return {w: new_w, m: new_m, v: new_v}

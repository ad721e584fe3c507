"""Blocks of one operator each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from steep.compat.onnxblock.base import Block, at_hand, info_of, new_name, value_names
from steep.compat.refusals import NotOffered
from steep.errors import DataError, ModelError, counted


class _Operator(Block):
    """An operator with the name of its class, and without attributes."""

    def build(self, *inputs: str) -> str:
        """Add the node; return its output's name."""
        return self.add_node(type(self).__name__, inputs)


class _Binary(_Operator):
    def build(self, first: str, second: str) -> str:  # type: ignore[override]
        """Add the node; return its output's name."""
        return super().build(first, second)


class _Unary(_Operator):
    def build(self, value: str) -> str:  # type: ignore[override]
        """Add the node; return its output's name."""
        return super().build(value)


class Add(_Binary):
    """The sum of two values."""


class Sub(_Binary):
    """The first value minus the second."""


class Mul(_Binary):
    """The elementwise product of two values."""


class Div(_Binary):
    """The first value divided by the second."""


class Sigmoid(_Unary):
    """1 / (1 + exp(-x))."""


class Log(_Unary):
    """The natural logarithm."""


class Neg(_Unary):
    """-x."""


class Abs(_Unary):
    """|x|."""


class SequenceConstruct(_Operator):
    """A sequence of values."""


class _Reduce(_Unary):
    """A reduction over all elements: of shape [1, 1, …], as ONNX's default, or a scalar.

    Args:
        keepdims: whether the result has the rank of the input.
    """

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__()
        self._keepdims = int(keepdims)

    def build(self, value: str) -> str:  # type: ignore[override]
        """Add the node; return its output's name."""
        return self.add_node(type(self).__name__, [value], keepdims=self._keepdims)


class ReduceMean(_Reduce):
    """The mean over all elements; ``keepdims=False``: a scalar."""


class ReduceSum(_Reduce):
    """The sum over all elements; ``keepdims=False``: a scalar."""


class Pow(Block):
    """A value to the power of a constant."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, value: str) -> str:
        """Add the node; return its output's name."""
        exponent = self.add_constant("pow_exponent", np.array(self._exponent, self.dtype_of(value)))
        return self.add_node("Pow", [value, exponent])


class Constant(Block):
    """A number, float32 of shape [1]."""

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        """Add the initializer; return its name."""
        return self.add_constant("initializer", np.array([self._value], np.float32))


class ReduceAllL2(Block):
    """The norm of all elements of several float values together: a float32 scalar."""

    def build(self, *values: str) -> str:
        """Add the nodes; return the norm's name. Raises DataError for no values."""
        if not values:
            raise DataError("ReduceAllL2 needs at least one value.", received="none")
        to = onnx.TensorProto.FLOAT
        wide = [self.add_node("Cast", [value], to=to) for value in values]
        squares = [self.add_node("ReduceSumSquare", [value], keepdims=0) for value in wide]
        return self.add_node("Sqrt", [self.add_node("Sum", squares)])


class Clip(Block):
    """A value, limited to a range."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._bounds = (clip_min, clip_max)

    def build(self, value: str) -> str:
        """Add the node; return its output's name."""
        dtype = self.dtype_of(value)
        bounds = [
            "" if bound is None else self.add_constant(f"clip_{end}", np.array(bound, dtype))
            for end, bound in zip(("min", "max"), self._bounds, strict=True)
        ]
        return self.add_node("Clip", [value, *bounds])


class PassThrough(Block):
    """Adds nothing: returns the names that it gets."""

    def build(self, *names: str) -> tuple[str, ...]:
        """Return the names."""
        return names


class InputLike(Block):
    """A new input with the dtype and shape of another value of the model."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        """Add the input; return its name.

        Raises:
            ModelError: the value's type is not known, or the name is taken.
        """
        model = at_hand()
        info = info_of(model, self._like)
        if info is None:
            raise ModelError(
                "The type of a value is not known.",
                node=self._like,
                remedy="declare it among the model's outputs, with its dtype and shape",
            )
        return add_input(model, input_name or new_name(model, "input"), info)


class LabelEncoder(Block):
    """Maps keys to values, both int64 or float32; other inputs map to a default.

    It consists of standard operators. Arguments for text must be left out.

    Args:
        default_float, default_int64: the default, according to the dtype of the values.
        default_string: accepted for compatibility.
        keys_floats, keys_int64s: pass one of them.
        values_floats, values_int64s: pass one of them, of the same length.

    Raises:
        NotOffered: keys or values are text.
        DataError: there are none, two kinds of them, or their numbers differ.
    """

    def __init__(  # noqa: PLR0917 (ONNX Runtime's order)
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None,
        keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None,
        values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None,
        values_strings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if keys_strings is not None or values_strings is not None:
            raise NotOffered(
                "Strings in a model are not supported.",
                node="LabelEncoder",
                expected="int64 or float32 keys and values",
                received="strings",
                remedy="map text to numbers before it is fed",
            )
        self._keys = _one_of("keys", keys_floats, keys_int64s)
        self._values = _one_of("values", values_floats, values_int64s)
        if self._keys.size != self._values.size:
            raise DataError(
                "A LabelEncoder needs one value for each key.",
                expected=counted(self._keys.size, "value"),
                received=f"{self._values.size}",
            )
        default = default_float if self._values.dtype == np.float32 else default_int64
        self._default = np.array(default, self._values.dtype)

    def build(self, value: str) -> str:
        """Add the nodes; return the name of the mapped values, which have the input's shape."""
        keys = self.add_constant("keys", self._keys)
        values = self.add_constant("values", self._values)
        apart = self._unsqueeze(value)
        hits = self.add_node("Cast", [self.add_node("Equal", [apart, keys])], to=6)  # int32
        at = self.add_node("ArgMax", [hits], axis=-1, keepdims=0)
        is_key = self.add_node("Equal", [self.add_node("Gather", [keys, at]), value])
        default = self.add_constant("default", self._default)
        return self.add_node("Where", [is_key, self.add_node("Gather", [values, at]), default])

    def _unsqueeze(self, value: str) -> str:
        if next(o.version for o in at_hand().opset_import if not o.domain) < 13:
            return self.add_node("Unsqueeze", [value], axes=[-1])
        return self.add_node("Unsqueeze", [value, self.add_constant("axes", np.array([-1]))])


class Cast(Block):
    """A value cast to another dtype, given as a number of ``onnx.TensorProto``."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to

    def build(self, value: str) -> str:
        """Add the node; return its output's name."""
        return self.add_node("Cast", [value], to=self._to)


class Linear(Block):
    """x W + b, with new float32 parameters drawn from a normal distribution by NumPy.

    Args:
        in_features, out_features: the extents of W.
        bias: whether to add b.
        alpha, beta: factors of the product and of b.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self._shape, self._bias = (in_features, out_features), bias
        self._factors: dict[str, Any] = {"alpha": alpha, "beta": beta}

    def build(self, value: str) -> str:
        """Add node and parameters; return the output's name."""
        draws = np.random.default_rng(np.random.randint(2**31))
        shapes = {"weight": self._shape, **({"bias": self._shape[1:]} if self._bias else {})}
        operands = [
            self.add_constant(f"linear.{part}", draws.standard_normal(shape).astype(np.float32))
            for part, shape in shapes.items()
        ]
        return self.add_node("Gemm", [value, *operands], "", **self._factors)


def _one_of(
    what: str, floats: Sequence[float] | None, integers: Sequence[int] | None
) -> np.ndarray[Any, Any]:
    if (floats is None) == (integers is None):
        raise DataError(
            f"A LabelEncoder needs {what} of exactly one type.",
            expected=f"{what}_floats or {what}_int64s",
            received="none" if floats is None else "both",
        )
    array = np.array(integers, np.int64) if floats is None else np.array(floats, np.float32)
    if array.ndim != 1 or array.size == 0:
        raise DataError(
            f"The {what} of a LabelEncoder are not a list.", received=f"shape {array.shape}"
        )
    return array


def add_input(model: onnx.ModelProto, name: str, like: onnx.ValueInfoProto) -> str:
    """Add an input with the type of ``like``; return its name. Raises ModelError if it exists."""
    if name in value_names(model):
        raise ModelError(
            "A new input has the name of an existing value.", node=name, remedy="choose another"
        )
    info = onnx.ValueInfoProto()
    info.CopyFrom(like)
    info.name = name
    model.graph.input.append(info)
    return name

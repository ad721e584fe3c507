"""Translations of operators that PyTorch's exporter translates for inference only."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxscript.function_libs.torch_lib.ops.core import (
    aten_addmm,
    aten_arange_start_step,
    aten_conv3d,
    aten_expand,
    aten_native_layer_norm,
)
from onnxscript.function_libs.torch_lib.ops.nn import aten_col2im

from steep._steep import SAMPLE_VARIANCE_KEY
from steep.lowering.ops.casts import cast
from steep.lowering.ops.grouped_product import grouped_product
from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import with_gradient_of
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import Extents, Number, Operator, Translation, Value
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload


def _like(tensor: Value, value: float) -> Value:
    """Return a number as a scalar with the dtype of a tensor."""
    # exact_constants.py keeps all digits
    return opset18.CastLike(opset18.Constant(value_float=value), tensor)


def _batch_norm(  # noqa: PLR0917, as ATen has it
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value, Value, Value]:
    """Return result, mean, 1 / standard deviation, and both running statistics, [C] each.

    In training the running variance is updated by the sample variance (divided by N - 1), as in
    PyTorch; ONNX divides by N.
    """
    channels = opset18.Shape(input, start=1, end=2)
    weight = opset18.Expand(_like(input, 1.0), channels) if weight is None else weight
    bias = opset18.Expand(_like(input, 0.0), channels) if bias is None else bias
    options = {"epsilon": eps, "momentum": 1 - momentum}
    if not training:
        y = opset18.BatchNormalization(input, weight, bias, running_mean, running_var, **options)
        deviation = opset18.Sqrt(opset18.Add(running_var, _like(running_var, eps)))
        return y, running_mean, opset18.Reciprocal(deviation), running_mean, running_var
    y, mean, variance = opset18.BatchNormalization(
        input, weight, bias, running_mean, running_var, training_mode=1, **options
    )
    y.producer().metadata_props[SAMPLE_VARIANCE_KEY] = ""
    axes = [axis for axis in range(len(input.shape)) if axis != 1]
    of_batch = opset18.ReduceMean(input, opset18.Constant(value_ints=axes), keepdims=1)
    deviations = opset18.Sub(input, of_batch)
    mean_square = opset18.ReduceMean(
        opset18.Mul(deviations, deviations), opset18.Constant(value_ints=axes), keepdims=0
    )
    deviation = opset18.Sqrt(opset18.Add(mean_square, _like(mean_square, eps)))
    flat = opset18.Reshape(of_batch, opset18.Constant(value_ints=[-1]))
    return y, flat, opset18.Reciprocal(deviation), mean, variance


def _batch_norm_without_statistics(  # noqa: PLR0917, as ATen has it
    input: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Return result, mean and 1 / standard deviation; the statistics are those of the batch."""
    channels = opset18.Shape(input, start=1, end=2)
    zeros = opset18.Expand(_like(input, 0.0), channels)
    ones = opset18.Expand(_like(input, 1.0), channels)
    return _batch_norm(input, weight, bias, zeros, ones, True, momentum, eps)[:3]


_FLOATS = {int(getattr(ir.DataType, name)) for name in ("FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE")}
_DOUBLE = int(ir.DataType.DOUBLE)


def _range(  # noqa: PLR0917, as ATen has it
    start: Number,
    end: Number,
    step: Number = 1,
    dtype: int = -1,
    layout: str = "",
    device: str = "",
    pin_memory: bool = False,
) -> Value:
    """Return start, start + step, …, for float numbers; the count is computed in float64.

    Raises NotImplementedError for fractions that are known only at a call, in float32.
    """
    values = [n for n in (start, end, step) if isinstance(n, ir.Value)]
    if dtype not in _FLOATS or values:
        if dtype in _FLOATS and any(n.dtype in _FLOATS for n in values):
            raise NotImplementedError("a range with fractional ends that change between calls")
        return aten_arange_start_step(start, end, step, dtype)
    count = max(0, math.ceil((end - start) / step))
    ints = opset18.Range(*(opset18.Constant(value_int=n) for n in (0, count, 1)))
    first, by = (opset18.Cast(float(n), to=_DOUBLE) for n in (start, step))
    steps = opset18.Mul(opset18.Cast(ints, to=_DOUBLE), by)
    return opset18.Cast(opset18.Add(first, steps), to=dtype)


def _window(*factors: float) -> Operator:
    """Return a translation of a window: Σ factors[k] · cos(2 pi k i / length)."""

    def of_length(
        window_length: int | Value,
        dtype: int,
        layout: str = "",
        device: str = "",
        pin_memory: bool = False,
    ) -> Value:
        zero, one = (opset18.Constant(value_int=n) for n in (0, 1))
        is_value = isinstance(window_length, ir.Value)
        length = window_length if is_value else opset18.Constant(value_int=window_length)
        i = opset18.Cast(opset18.Range(zero, length, one), to=_DOUBLE)
        turns = opset18.Div(i, opset18.Cast(length, to=_DOUBLE))
        total = opset18.Mul(i, _like(i, 0.0))
        for k, factor in enumerate(factors):
            wave = opset18.Cos(opset18.Mul(turns, _like(i, 2 * math.pi * k)))
            total = opset18.Add(total, opset18.Mul(wave, _like(i, factor)))
        alone = opset18.Equal(length, one)  # PyTorch returns 1 for a length of 1
        return opset18.Cast(opset18.Where(alone, _like(i, 1.0), total), to=dtype)

    return of_length


def _at_least(axes: dict[int, list[int]]) -> tuple[Operator, Translation]:
    """Return ``atleast_…d`` of a tensor, and of several; ``axes`` are those to add, by rank."""

    def of_one(self: Value) -> Value:
        new_axes = axes.get(len(self.shape))
        return opset18.Unsqueeze(self, opset18.Constant(value_ints=new_axes)) if new_axes else self

    return of_one, lambda tensors: [of_one(t) for t in tensors]


_at_least_1d = _at_least({0: [0]})
_at_least_2d = _at_least({0: [0, 1], 1: [0]})
_at_least_3d = _at_least({0: [0, 1, 2], 1: [0, 2], 2: [2]})


def _squeeze(self: Value, dim: Sequence[int]) -> Value:
    """Return a tensor without the given axes; axes of another extent than 1 stay."""
    axes = sorted({d % len(self.shape) for d in dim if self.shape[d] == 1})
    return opset18.Squeeze(self, opset18.Constant(value_ints=axes)) if axes else self


def _fold(self: Value, output_size: Extents, *window: Sequence[int]) -> Value:
    """Return ``col2im``: sums of windows at their places in an image of known extents."""
    sizes = output_size if isinstance(output_size, (list, tuple)) else [output_size]
    if not all(isinstance(n, int) for n in sizes):
        raise NotImplementedError("the output size of fold must be known")
    return aten_col2im(self, output_size, *window)


def _make_added_product(multiply: Operator, skips: bool = False) -> Operator:
    """Return beta · self + alpha · product; with beta 0, self is ignored, even if NaN.

    With ``skips`` and alpha 0 the product is ignored too, as in BLAS; gradients have no such
    exception.
    """

    def add(self: Value, left: Value, right: Value, beta: float = 1, alpha: float = 1) -> Value:
        product = multiply(left, right)
        if alpha == 0 and skips:
            term = opset18.Mul(self, _like(self, float(beta))) if beta else _like(self, 0.0)
            value = opset18.Expand(term, opset18.Shape(product))
            return with_gradient_of(detach(value), add_up(self, product, beta, alpha))
        return add_up(self, product, beta, alpha)

    def add_up(self: Value, product: Value, beta: float, alpha: float) -> Value:
        if alpha != 1:
            product = opset18.Mul(product, _like(product, float(alpha)))
        if beta == 0:
            return product
        term = self if beta == 1 else opset18.Mul(self, _like(self, float(beta)))
        return opset18.Add(term, product)

    return add


_addmm_without_product = _make_added_product(opset18.MatMul, skips=True)


def _addmm(self: Value, mat1: Value, mat2: Value, beta: float = 1, alpha: float = 1) -> Value:
    word = _addmm_without_product if alpha == 0 else aten_addmm
    return word(self, mat1, mat2, beta, alpha)


def _convolution_of_volumes(  # noqa: PLR0917, as ATen has it
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1, 1, 1),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
    groups: int = 1,
) -> Value:
    """Return ``conv3d``; without a bias the exporter would make a wrong one, of two axes."""
    if bias is None:
        zero = _like(weight, 0.0)
        bias = opset18.Expand(zero, opset18.Shape(weight, start=0, end=1))
    return aten_conv3d(input, weight, bias, stride, padding, dilation, groups)


def _copy(self: Value, src: Value, non_blocking: bool = False) -> Value:
    """Return the value of ``self`` after ``self.copy_(src)``: ``src`` in its dtype and extents."""
    same = self.shape is not None and self.shape == src.shape
    copy = opset18.CastLike(src, self) if self.dtype is None else cast(src, self.dtype)
    return copy if same else opset18.Expand(copy, opset18.Shape(self))


def _masked_select(self: Value, mask: Value) -> Value:
    """Return the entries of a tensor where a mask is true; the two are broadcast."""
    if self.shape is None or self.shape != mask.shape:
        self, mask = (
            opset18.Expand(self, opset18.Shape(mask)),
            opset18.Expand(mask, opset18.Shape(self)),
        )
    return opset18.GatherND(self, opset18.Transpose(opset18.NonZero(mask), perm=[1, 0]))


def _product_of_batches(left: Value, right: Value) -> Value:
    first = opset18.Constant(value_ints=[0])
    return opset18.ReduceSum(opset18.MatMul(left, right), first, keepdims=0)


def _grouped_mm(
    self: Value,
    mat2: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: int | None = None,
) -> Value:
    """Return ``F.grouped_mm`` of rows in groups, with one matrix per group."""
    if offs is None or bias is not None or len(self.shape) != 2 or len(mat2.shape) != 3:
        raise NotImplementedError("grouped_mm of other operands than rows and one matrix per group")
    product = grouped_product(self, mat2, offs)
    return product if out_dtype is None else opset18.Cast(product, to=out_dtype)


def _batch_norm_in_evaluation(  # noqa: PLR0917, as ATen has it
    input: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Return the result with the given statistics, and two tensors without elements."""
    y = _batch_norm(input, weight, bias, mean, variance, False, momentum, eps)[0]
    nothing = opset18.Expand(_like(input, 0.0), opset18.Constant(value_ints=[0]))
    return y, nothing, nothing


def _layer_norm(
    input: Value,
    normalized_shape: Extents,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> tuple[Value, Value, Value]:
    """Return result, mean and 1 / standard deviation, in the input's dtype.

    The statistics of ONNX's operator are float32. Gradients go through these, since PyTorch's
    formula of the first derivative reads them, and a second one needs theirs.
    """
    y, _, _ = aten_native_layer_norm(input, normalized_shape, weight, bias, eps)
    axes = opset18.Constant(value_ints=[*range(-len(normalized_shape), 0)])
    mean = opset18.ReduceMean(input, axes, keepdims=1)
    deviations = opset18.Sub(input, mean)
    variance = opset18.ReduceMean(opset18.Mul(deviations, deviations), axes, keepdims=1)
    deviation = opset18.Sqrt(opset18.Add(variance, _like(input, eps)))
    return y, mean, opset18.Reciprocal(deviation)


TRAINED: dict[OpOverload, Translation] = operators(
    {
        "aten._grouped_mm.default": _grouped_mm,
        "aten._native_batch_norm_legit_functional.default": _batch_norm,
        "aten._native_batch_norm_legit.no_stats": _batch_norm_without_statistics,
        "aten._native_batch_norm_legit_no_training.default": _batch_norm_in_evaluation,
        "aten.arange.start_step": _range,
        "aten.atleast_1d.default": _at_least_1d[0],
        "aten.atleast_1d.Sequence": _at_least_1d[1],
        "aten.atleast_2d.default": _at_least_2d[0],
        "aten.atleast_2d.Sequence": _at_least_2d[1],
        "aten.atleast_3d.default": _at_least_3d[0],
        "aten.atleast_3d.Sequence": _at_least_3d[1],
        "aten.col2im.default": _fold,
        "aten.addbmm.default": _make_added_product(_product_of_batches, skips=True),
        "aten.addmm.default": _addmm,
        "aten.addmv.default": _make_added_product(opset18.MatMul, skips=True),
        "aten.blackman_window.default": _window(0.42, -0.5, 0.08),
        "aten.hamming_window.default": _window(0.54, -0.46),
        "aten.hann_window.default": _window(0.5, -0.5),
        "aten.baddbmm.default": _make_added_product(opset18.MatMul),
        "aten.conv3d.default": _convolution_of_volumes,
        "aten.copy.default": _copy,
        "aten.native_layer_norm.default": _layer_norm,
        "aten.masked_select.default": _masked_select,
        "aten.squeeze.dim": lambda self, dim: _squeeze(self, [dim] if self.shape else []),
        "aten.squeeze.dims": _squeeze,
    }
)
"""Translations by operator."""


def _complex_unsqueeze(self: Value, dim: int) -> Value:
    """Add an axis to complex numbers, which ONNX stores with both parts in a last axis."""
    return opset18.Unsqueeze(self, opset18.Constant(value_ints=[dim if dim >= 0 else dim - 1]))


def _complex_select(self: Value, dim: int, index: int) -> Value:
    axis = dim if dim >= 0 else dim - 1
    return opset18.Gather(self, opset18.Constant(value_int=index), axis=axis)


def _complex_expand(self: Value, size: Extents, implicit: bool = False) -> Value:
    return aten_expand(self, [*size, 2], implicit)


OF_COMPLEX: dict[OpOverload, Translation] = operators(
    {
        "aten.expand.default": _complex_expand,
        "aten.select.int": _complex_select,
        "aten.unsqueeze.default": _complex_unsqueeze,
    }
)
"""Translations by operator, for complex operands."""

"""Rewrites PyTorch functions for which exporters lose an option or a gradient."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn, TypeAlias

import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from steep.lowering.ops.ctc import ctc_losses
from steep.lowering.ops.huber import huber_loss
from steep.lowering.ops.stop_gradient import stop_gradient
from steep.lowering.products import NARROWED_FUNCTIONS
from steep.lowering.several_results import SEVERAL_RESULTS, WITHOUT_RESULTS
from steep.lowering.transformer_layers import encode
from steep.lowering.view_rewrites import VIEWS, Tensors
from steep.torch_internals.nn import legacy_reduction, transformer_encoder_layer
from steep.torch_internals.operators import aten, pad
from steep.torch_internals.pytree import tree_leaves, tree_map_only

_Extents: TypeAlias = int | Sequence[int]
# a tensor: a Python number that changes from call to call
_Number: TypeAlias = float | torch.Tensor


def raise_inexpressible(what: str) -> NoReturn:
    """Raise RuntimeError: ONNX cannot express ``what``."""
    raise RuntimeError(f"{what} cannot be expressed in ONNX")


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise_inexpressible(what)

    return refuse


def _bind(
    function: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]
) -> SimpleNamespace:
    """Return the arguments of a call by name, defaults included."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments)


def _cross_entropy(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.cross_entropy`` with label smoothing and with probabilities as targets."""
    c = _bind(F.cross_entropy, args, kwargs)
    if c.input.dim() == 1:  # one row without a batch axis, which ONNX requires
        c.input, c.target = c.input[None], c.target[None]
        losses = _cross_entropy(**vars(c))
        return losses.reshape(()) if c.reduction == "none" else losses
    if not c.target.dtype.is_floating_point and c.label_smoothing == 0:
        if has_free_unbacked_symbols(c.input):
            return _nll_of_some(F.log_softmax(c.input, 1), c)
        return F.cross_entropy(*args, **kwargs)
    if c.size_average is not None or c.reduce is not None:
        c.reduction = legacy_reduction(c.size_average, c.reduce)
    classes = c.input.shape[1]
    weight = None
    if c.weight is not None:
        weight = c.weight.view([-1 if i == 1 else 1 for i in range(c.input.dim())])
    if c.target.dtype.is_floating_point:
        weights = c.target * (1 - c.label_smoothing) + c.label_smoothing / classes
        weights = weights if weight is None else weights * weight
        losses = -(weights * F.log_softmax(c.input, 1)).sum(1)
        if c.reduction == "none":
            return losses
        return losses.sum() / (losses.numel() if c.reduction == "mean" else 1)
    # Σ -w log softmax, over all classes
    log_p = F.log_softmax(c.input, 1)
    smooth = -(log_p if weight is None else weight * log_p).sum(1)
    counts = c.target != c.ignore_index
    smooth = torch.where(counts, smooth, 0.0)
    if c.reduction == "mean":
        shares = counts.to(smooth.dtype)
        if weight is not None:
            shares = shares * c.weight[torch.where(counts, c.target, 0)]
        smooth = smooth.sum() / shares.sum()
    elif c.reduction == "sum":
        smooth = smooth.sum()
    sharp = F.cross_entropy(
        c.input, c.target, c.weight, ignore_index=c.ignore_index, reduction=c.reduction
    )
    return (1 - c.label_smoothing) * sharp + c.label_smoothing / classes * smooth


def _nll_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.nll_loss`` for a number of rows that depends on values; tracers would read the number."""
    c = _bind(F.nll_loss, args, kwargs)
    if c.input.dim() == 1 or not has_free_unbacked_symbols(c.input):
        return F.nll_loss(*args, **kwargs)
    return _nll_of_some(c.input, c)


def _nll_of_some(log_p: torch.Tensor, c: SimpleNamespace) -> torch.Tensor:
    """Return the loss for class labels; there may be no rows."""
    if c.size_average is not None or c.reduce is not None:
        c.reduction = legacy_reduction(c.size_average, c.reduce)
    counts = c.target != c.ignore_index
    target = torch.where(counts, c.target, 0)
    losses = -log_p.gather(1, target.unsqueeze(1)).squeeze(1)
    shares = counts.to(losses.dtype) if c.weight is None else counts * c.weight[target]
    losses = torch.where(counts, losses, 0.0) * shares
    if c.reduction == "none":
        return losses
    return losses.sum() / (shares.sum() if c.reduction == "mean" else 1)


def _check_embedding(call: SimpleNamespace) -> None:
    if call.max_norm is not None:
        raise_inexpressible("max_norm of an embedding, which changes its weight in forward,")
    if call.scale_grad_by_freq:
        raise_inexpressible("scale_grad_by_freq of an embedding")


def _embedding(*args: object, **kwargs: object) -> torch.Tensor:
    """``F.embedding``, without a gradient at ``padding_idx``."""
    c = _bind(F.embedding, args, kwargs)
    _check_embedding(c)
    rows = F.embedding(c.input, c.weight)
    if c.padding_idx is None:
        return rows
    padding = c.padding_idx if c.padding_idx >= 0 else c.weight.shape[0] + c.padding_idx
    return torch.where((c.input == padding).unsqueeze(-1), stop_gradient(rows), rows)


def _embedding_bag(*args: object, **kwargs: object) -> torch.Tensor:
    """``F.embedding_bag``; the exporters translate it to a loop over bags, in float32."""
    c = _bind(F.embedding_bag, args, kwargs)
    _check_embedding(c)
    if c.offsets is not None and c.mode == "max":
        raise_inexpressible("the maximum of bags of different sizes")
    rows = F.embedding(c.input, c.weight)
    if c.per_sample_weights is not None:
        rows = rows * c.per_sample_weights.unsqueeze(-1)
    counts = torch.ones_like(c.input, dtype=torch.bool).unsqueeze(-1)
    if c.padding_idx is not None:
        counts = (c.input != c.padding_idx % c.weight.shape[0]).unsqueeze(-1)
        rows = torch.where(counts, rows, -math.inf if c.mode == "max" else 0.0)
    if c.mode == "max":
        return torch.where(counts.any(1), rows.max(1).values, 0.0)
    if c.offsets is None:
        total, size = rows.sum(1), counts.sum(1)
    else:
        starts = c.offsets[:-1] if c.include_last_offset else c.offsets
        first = torch.zeros(c.input.shape[0] + 1, dtype=torch.int64)
        first = first.index_add(0, starts.to(torch.int64), torch.ones_like(starts).to(torch.int64))
        bag = first.cumsum(0)[:-1] - 1
        total = rows.new_zeros(starts.shape[0], rows.shape[1]).index_add(0, bag, rows)
        size = torch.zeros(starts.shape[0], 1, dtype=torch.int64)
        size = size.index_add(0, bag, counts.to(torch.int64))
    return total / size.clamp(min=1) if c.mode == "mean" else total


def _cosine_similarity(
    x1: torch.Tensor, x2: torch.Tensor, dim: int = 1, eps: float = 1e-8
) -> torch.Tensor:
    """``F.cosine_similarity``: norms below ``eps`` become ``eps``, and keep their gradient."""
    kind = torch.promote_types(x1.dtype, x2.dtype)
    x1, x2 = torch.broadcast_tensors(x1.to(kind), x2.to(kind))

    def direction(x: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, 2, dim, keepdim=True)
        length = eps + (norm - stop_gradient(norm))
        return x / torch.where(norm < eps, length, norm)

    return (direction(x1) * direction(x2)).sum(dim)


def _pad(
    input: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> torch.Tensor:
    """``F.pad`` in circular mode with negative pads: crops first, then wraps around."""
    if mode == "circular" and any(n < 0 for n in pad):
        input = F.pad(input, [min(n, 0) for n in pad])
        pad = [max(n, 0) for n in pad]
    return F.pad(input, pad, mode, value)


def _cross(
    input: torch.Tensor, other: torch.Tensor, dim: int | None = None, **options: object
) -> torch.Tensor:
    """``torch.cross``: the default axis is the first one of extent 3 in this call's shapes."""
    if dim is None:
        shape = torch.broadcast_shapes(input.shape, other.shape)
        dim = next((i for i, extent in enumerate(shape) if extent == 3), None)
    return torch.cross(input, other, dim, **options)


def _as_strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """``as_strided``: the exporters assume that each tensor is contiguous."""
    order = sorted(range(x.dim()), key=lambda axis: (-x.stride(axis), -x.shape[axis]))
    memory = x.permute(order)
    start = 0 if storage_offset is None else storage_offset - x.storage_offset()
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not memory.is_contiguous() or start < 0 or start + reach >= x.numel():
        raise_inexpressible("as_strided of a tensor with gaps, or beyond a tensor,")
    memory = memory if order == list(range(x.dim())) else memory.clone()
    return memory.as_strided(size, stride, start)


def _dropout(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.dropout``: returns its argument if it drops nothing; tracing would copy it."""
    c = _bind(F.dropout, args, kwargs)
    if c.training and c.p == 1:
        return c.input.mul_(torch.zeros(())) if c.inplace else c.input * torch.zeros(())
    return c.input if not c.training or c.p == 0 else F.dropout(*args, **kwargs)


def _dropping(dropout: Callable[..., torch.Tensor], trains: bool) -> Callable[..., torch.Tensor]:
    """Return another kind of dropout; ``trains`` is the default of its argument ``training``."""

    def rewrite(*args: object, **kwargs: object) -> torch.Tensor:
        c = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
        if not c.get("training", c.get("train", trains)) or c.get("p", 0.5) == 0:
            input: torch.Tensor = c["input"]
            return input
        return dropout(*args, **kwargs)

    return rewrite


def _rrelu(rrelu: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return ``F.rrelu`` or a variant: slopes are random in training, else the mean slope."""

    def rewrite(
        input: torch.Tensor,
        lower: float = 1 / 8,
        upper: float = 1 / 3,
        training: bool = False,
        *options: object,
        **keywords: object,
    ) -> torch.Tensor:
        if training:
            return rrelu(input, lower, upper, training, *options, **keywords)
        slope = (lower + upper) / 2
        if rrelu is torch.rrelu_ or keywords.get("inplace") or options == (True,):
            return F.leaky_relu_(input, slope)
        return F.leaky_relu(input, slope)

    return rewrite


def _stack(tensors: Sequence[torch.Tensor], dim: int = 0, **options: object) -> torch.Tensor:
    """``torch.stack`` of tensors of several dtypes, which the exporters do not promote."""
    kind = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    return torch.stack([t.to(kind) for t in tensors], dim, **options)


def _einsum(equation: str | torch.Tensor, *operands: Tensors | Sequence[object]) -> torch.Tensor:
    """``torch.einsum``: returns a view for a single tensor if no axis is summed."""
    is_list = len(operands) == 1 and isinstance(operands[0], (list, tuple))
    x, *others = operands[0] if is_list else operands
    if not isinstance(equation, str) and len(operands) in (1, 2):  # (tensor, axes, kept axes)
        view = _reorder(equation, *(["..." if i is ... else i for i in a] for a in operands))
    elif isinstance(equation, str) and not others:
        left, arrow, right = equation.replace(" ", "").partition("->")
        view = _reorder(x, *(re.findall(r"\.\.\.|.", s) for s in (left, right)[: 1 + bool(arrow)]))
    else:
        view = None
    return _of_one_width(torch.einsum)(equation, *operands) if view is None else view


def _reorder(
    x: torch.Tensor, axes: list[Any], result_axes: list[Any] | None = None
) -> torch.Tensor | None:
    """Return the view of ``x`` that has the axes ``result_axes``; None if some are to be summed."""
    if "..." in axes:
        at = axes.index("...")
        rest = [("...", i) for i in range(x.dim() - len(axes) + 1)]
        axes = [*axes[:at], *rest, *axes[at + 1 :]]
    else:
        rest = []
    if result_axes is None:
        result_axes = ["...", *sorted(a for a in axes if a not in rest and axes.count(a) == 1)]
    if "..." in result_axes:
        at = result_axes.index("...")
        result_axes = [*result_axes[:at], *rest, *result_axes[at + 1 :]]
    if set(result_axes) != set(axes):
        return None
    for label in result_axes:
        while axes.count(label) > 1:
            first = axes.index(label)
            second = axes.index(label, first + 1)
            x = x.diagonal(0, first, second)
            axes = [*axes[:first], *axes[first + 1 : second], *axes[second + 1 :], label]
    return x.permute([axes.index(label) for label in result_axes])


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """``F.one_hot``: the engine raises an error for an index out of range."""
    if num_classes <= 0:  # the largest index decides
        return F.one_hot(tensor, num_classes)
    rows = torch.eye(num_classes, dtype=torch.int64)
    return rows[torch.where(tensor < 0, num_classes, tensor)]


def _place(of_extreme: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return ``argmax`` or ``argmin``; both refuse booleans, for which PyTorch has no kernels."""

    def rewrite(*args: object, **kwargs: object) -> torch.Tensor:
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.bool:
            raise_inexpressible("the place of an extreme of booleans")
        return of_extreme(*args, **kwargs)

    return rewrite


def _points(between: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return ``torch.linspace`` or ``logspace``: no gradient flows to ends that are tensors."""

    def rewrite(*args: object, **kwargs: object) -> torch.Tensor:
        args, kwargs = tree_map_only(torch.Tensor, stop_gradient, (args, kwargs))
        return between(*args, **kwargs)

    return rewrite


def _full(size: Sequence[int], fill_value: _Number, **options: object) -> torch.Tensor:
    """``torch.full``, also for a number that changes from call to call and comes as a tensor."""
    if not isinstance(fill_value, torch.Tensor) or options.keys() - {"dtype", "device"}:
        return torch.full(size, fill_value, **options)
    kind = fill_value.dtype
    kind = torch.get_default_dtype() if kind.is_floating_point else kind
    filling = stop_gradient(fill_value.to(options.get("dtype") or kind))
    return filling.expand(size).clone()


def _full_like(input: torch.Tensor, fill_value: _Number, **options: object) -> torch.Tensor:
    """``torch.full_like``, as ``_full``."""
    if not isinstance(fill_value, torch.Tensor):
        return torch.full_like(input, fill_value, **options)
    return _full(input.shape, fill_value, **{"dtype": input.dtype} | options)


def _new_full(
    self: torch.Tensor, size: Sequence[int], fill_value: _Number, **options: object
) -> torch.Tensor:
    """``Tensor.new_full``, as ``_full``."""
    if not isinstance(fill_value, torch.Tensor):
        return self.new_full(size, fill_value, **options)
    return _full(size, fill_value, **{"dtype": self.dtype} | options)


def _scale_by(function: Callable[..., torch.Tensor], factor: str) -> Callable[..., torch.Tensor]:
    """Return a sum with a factor (``alpha``); a factor that changes between calls is a tensor."""

    def rewrite(*args: _Number, **kwargs: _Number) -> torch.Tensor:
        if not isinstance(kwargs.get(factor), torch.Tensor) or len(args) < 2:
            return function(*args, **kwargs)
        scale = kwargs.pop(factor)
        input, value, *others = args
        return function(input, value * scale, *others, **kwargs)

    return rewrite


def _leaky_relu(
    input: torch.Tensor, negative_slope: _Number = 0.01, inplace: bool = False
) -> torch.Tensor:
    """``F.leaky_relu``, also with a slope that changes from call to call and comes as a tensor."""
    if inplace or not isinstance(negative_slope, torch.Tensor):
        return F.leaky_relu(input, negative_slope, inplace)
    return torch.where(input > 0, input, input * negative_slope)


def _gumbel_softmax(*args: object, **kwargs: object) -> torch.Tensor:
    """``F.gumbel_softmax``, whose ``hard`` option detaches a tensor."""
    c = _bind(F.gumbel_softmax, args, kwargs)
    soft = F.gumbel_softmax(c.logits, c.tau, dim=c.dim)
    if not c.hard:
        return soft
    largest = soft.max(c.dim, keepdim=True)[1]
    one_hot = torch.zeros_like(soft).scatter(c.dim, largest, 1.0)
    return stop_gradient(one_hot - soft) + soft


def _average_pool(pool: Callable[..., torch.Tensor], axes: int) -> Callable[..., torch.Tensor]:
    """Return ``F.avg_pool2d`` or ``F.avg_pool3d`` with ``divisor_override``."""

    def rewrite(
        x: torch.Tensor,
        kernel_size: _Extents,
        stride: _Extents | None = None,
        *options: object,
        **keywords: Any,
    ) -> torch.Tensor:
        order = ("padding", "ceil_mode", "count_include_pad", "divisor_override")
        keywords.update(zip(order, options, strict=False))
        divisor = keywords.pop("divisor_override", None)
        if divisor is None:
            return pool(x, kernel_size, stride, **keywords)
        if keywords.get("ceil_mode"):
            raise_inexpressible("divisor_override of an average pool with ceil_mode")
        keywords["count_include_pad"] = True
        sizes = [kernel_size] if isinstance(kernel_size, int) else list(kernel_size)
        extent = math.prod(sizes) if len(sizes) == axes else sizes[0] ** axes
        return pool(x, kernel_size, stride, **keywords) * (extent / divisor)

    return rewrite


def _gives_whole(extents: Sequence[int], scales: Sequence[float]) -> bool:
    """Return whether scaled extents are whole numbers; False for symbolic extents."""
    scales = scales if len(scales) == len(extents) else [*scales] * len(extents)
    return all(
        type(n) is int and (n * s).is_integer() for n, s in zip(extents, scales, strict=True)
    )


def _interpolate(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.interpolate``: refuses options that the exporters translate wrongly."""
    c = _bind(F.interpolate, args, kwargs)
    scales = c.scale_factor if isinstance(c.scale_factor, (list, tuple)) else [c.scale_factor or 1]
    whole = c.recompute_scale_factor or all(s == int(s) for s in scales)
    if c.mode == "nearest-exact" and not whole:
        raise_inexpressible("nearest-exact interpolation by a scale that is no integer")
    if c.antialias and c.align_corners:  # PyTorch's filter has the width of a step between corners
        raise_inexpressible("interpolation with antialias and align_corners")
    if c.antialias and not (whole or _gives_whole(c.input.shape[2:], scales)):
        raise_inexpressible(
            "interpolation with antialias to extents that are rounded"
        )  # ONNX uses another step
    return F.interpolate(*args, **kwargs)


def _instance_norm(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.instance_norm`` with updates of running statistics, which exporters miss."""
    c = _bind(F.instance_norm, args, kwargs)
    if c.running_mean is None or not c.use_input_stats:
        return F.instance_norm(*args, **kwargs)
    axes = list(range(2, c.input.dim()))
    with torch.no_grad():
        mean, var = c.input.mean(axes).mean(0), c.input.var(axes).mean(0)
        for statistic, new in ((c.running_mean, mean), (c.running_var, var)):
            statistic.mul_(1 - c.momentum).add_(stop_gradient(new), alpha=c.momentum)
    return F.instance_norm(c.input, weight=c.weight, bias=c.bias, eps=c.eps)


def _ctc_loss(*args: object, **kwargs: object) -> torch.Tensor:
    """``F.ctc_loss``, for which ONNX has no operator."""
    c = _bind(F.ctc_loss, args, kwargs)
    single = c.log_probs.dim() == 2
    if single:
        c.log_probs, c.targets = c.log_probs[:, None], c.targets.reshape(1, -1)
    lengths = [torch.as_tensor(n).reshape(-1) for n in (c.input_lengths, c.target_lengths)]
    options = {"blank": c.blank, "zero_infinity": c.zero_infinity}
    losses = ctc_losses(c.log_probs, c.targets, *lengths, **options)
    if c.reduction == "mean":
        return (losses / lengths[1].clamp(min=1)).mean()
    if c.reduction == "sum":
        return losses.sum()
    return losses[0] if single else losses


def _of_one_width(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a product that autocast narrows, for operands of several float dtypes.

    Code that reads the dtype of a product's result (``bias.to(query.dtype)``) saw a 16-bit dtype at
    capture. Here the query is still float32, since the engine narrows products later. Widening the
    other operand loses nothing.
    """

    def rewrite(*args: object, **kwargs: object) -> torch.Tensor:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        widths = {t.dtype for t in tensors if t.dtype.is_floating_point}
        if len(widths) > 1:
            widest = functools.reduce(torch.promote_types, widths)
            args, kwargs = tree_map_only(
                torch.Tensor,
                lambda t: t.to(widest) if t.dtype.is_floating_point else t,
                (args, kwargs),
            )
        return product(*args, **kwargs)

    return rewrite


DETACH = {
    *(torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__),  # type: ignore[attr-defined]
    *(aten.detach, aten.detach.default),
}

REWRITES: dict[Any, Callable[..., Any]] = {
    **{product: _of_one_width(product) for product in NARROWED_FUNCTIONS},
    **dict.fromkeys(DETACH, stop_gradient),
    torch.Tensor.detach_: _refuse("detach_"),
    torch.Tensor.data.__set__: _refuse("an assignment to Tensor.data"),  # type: ignore[attr-defined]
    torch.Tensor.register_hook: _refuse("a hook on the gradient of a tensor"),
    torch.Tensor.as_strided: _as_strided,
    torch.as_strided: _as_strided,
    **{
        place: _place(place)
        for place in (torch.argmax, torch.argmin, torch.Tensor.argmax, torch.Tensor.argmin)
    },
    torch.linspace: _points(torch.linspace),
    torch.logspace: _points(torch.logspace),
    torch.full: _full,
    torch.full_like: _full_like,
    torch.Tensor.new_full: _new_full,
    **{
        sum_of: _scale_by(sum_of, factor)
        for factor, names in (("alpha", ("add", "sub")), ("value", ("addcmul", "addcdiv")))
        for name in names
        for sum_of in (
            getattr(torch, name),
            getattr(torch.Tensor, name),
            getattr(torch.Tensor, f"{name}_"),
        )
    },
    F.leaky_relu: _leaky_relu,
    torch.cross: _cross,
    torch.Tensor.cross: _cross,
    torch.stack: _stack,
    torch.einsum: _einsum,
    **VIEWS,
    **SEVERAL_RESULTS,
    **{f: _refuse(f"the results of {f.__name__} beside the first") for f in WITHOUT_RESULTS},
    F.dropout: _dropout,
    **{d: _dropping(d, trains=True) for d in (F.dropout1d, F.dropout2d, F.dropout3d)},
    **{d: _dropping(d, trains=False) for d in (F.alpha_dropout, F.feature_alpha_dropout)},
    **{
        d: _dropping(d, trains=True)  # callers always pass training
        for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
        for d in (getattr(torch, name), getattr(torch, f"{name}_"))
    },
    **{rrelu: _rrelu(rrelu) for rrelu in (F.rrelu, torch.rrelu, torch.rrelu_)},
    F.cosine_similarity: _cosine_similarity,
    F.cross_entropy: _cross_entropy,
    F.ctc_loss: _ctc_loss,
    F.embedding: _embedding,
    F.embedding_bag: _embedding_bag,
    F.huber_loss: huber_loss,
    F.gumbel_softmax: _gumbel_softmax,
    F.one_hot: _one_hot,
    F.avg_pool2d: _average_pool(F.avg_pool2d, 2),
    F.avg_pool3d: _average_pool(F.avg_pool3d, 3),
    F.instance_norm: _instance_norm,
    F.interpolate: _interpolate,
    F.nll_loss: _nll_loss,
    pad: _pad,  # F.pad
    transformer_encoder_layer: encode,
}
"""Rewrites by function."""

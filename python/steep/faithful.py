"""What ONNX exporters lose of a module on the way, said in operators that they keep.

They take a module for inference: ``detach`` and ``no_grad`` vanish, and with them the gradients
that the module asked for; so do options of operators that ONNX has no word for, such as the
smoothing of labels. While a module runs inside of ``faithful()`` its calls of PyTorch are watched:
a tensor without history becomes the result of ``steep::stop_gradient``, an option that would get
lost is written out, and what cannot be written out raises RuntimeError.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy
import onnx
import torch
import torch.nn.functional as F
from onnxscript import opset18
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.weak import WeakIdKeyDictionary

from steep.quiet import replaced
from steep.translations import WITH_BACKWARD

_KEY = "steep.stop_gradient"
_OPERATORS = torch.library.Library("steep", "DEF")
_OPERATORS.define("stop_gradient(Tensor x) -> Tensor")
_OPERATORS.impl("stop_gradient", lambda x: x.detach().clone(), "CompositeExplicitAutograd")
# by default autograd would note that it has no derivative, and the result would need a gradient
_OPERATORS.impl("stop_gradient", torch.library.fallthrough_kernel, "Autograd")


def stop_gradient(input: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor of any shape and dtype, which no gradient reaches."""
    if not input.dtype.is_floating_point:
        return input
    stopped: torch.Tensor = torch.ops.steep.stop_gradient(input)
    return stopped


def _translated(x: Any) -> Any:
    """Say it in standard ONNX: an Identity with metadata."""
    y = opset18.Identity(x)
    y.producer().metadata_props[_KEY] = ""
    return y


TRANSLATIONS: dict[Any, Any] = {torch.ops.steep.stop_gradient.default: _translated}
"""For torch.onnx.export of what torch.export captured."""

torch.onnx.register_custom_op_symbolic(
    "steep::stop_gradient", lambda g, x: g.op("steep::StopGradient", x).setType(x.type()), 9
)


def mark_stops(graph: onnx.GraphProto) -> None:
    """In a graph that was traced, say it in standard ONNX as well."""
    for node in graph.node:
        if node.domain == "steep":
            node.domain, node.op_type = "", "Identity"
            node.metadata_props.add(key=_KEY)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                mark_stops(body)


@contextlib.contextmanager
def faithful(arguments: tuple[torch.Tensor, ...] = ()) -> Iterator[_Watch]:
    """Within, a module that runs says all that it computes, gradients included.

    Yields what is told at the end which ``arguments`` have values that Python code looked into.
    """
    watch = _Watch(arguments)
    with (
        # Every apply() asks it, found by its class or kept by the module under a name of its own.
        replaced(torch.autograd.function, "_is_setup_context_defined", _refuse_function),
        replaced(CheckpointFunction, "apply", _run_checkpointed),
        watch,
    ):
        drawn = _generators()
        yield watch
        if _generators() != drawn:
            _lost("a random number that Python or NumPy draws")


def _generators() -> str:
    """State of the generators whose numbers a graph would repeat for ever."""
    return repr((random.getstate(), numpy.random.get_state()))


class _Watch(TorchFunctionMode):
    def __init__(self, arguments: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.arguments = {id(t): t for t in arguments}
        self.decisive: set[int] = set()
        # By identity, and held, so that no other tensor gets it: what in PyTorch shares memory with
        # a tensor that has a history, and here is a copy.
        self.aliases: dict[int, torch.Tensor] = {}
        self.written = _Written()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch._C._set_grad_enabled:
            # torch.export would cut the graph into pieces here.
            with torch._C.DisableTorchFunction():
                return func(*args)
        kwargs = kwargs or {}
        if _works_in_place(func):
            self._check_target(args[:1])
        self._check_target(kwargs.get("out"))
        if func in _TO_PYTHON:
            self._note_value(args[0])
        self.written.check((args, kwargs))
        result = _call(_RESTATED.get(func, func), args, kwargs)
        self.written.note(func, args, kwargs, result)
        if func in _DETACH:
            if result.dtype.is_floating_point:
                self.aliases[id(result)] = result
            return result
        if torch.is_grad_enabled():
            return result
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}

        def stop(t: torch.Tensor) -> torch.Tensor:
            if id(t) in given:  # nothing new
                return t
            stopped = stop_gradient(t)
            self.written.note(stop_gradient, (), {}, stopped)
            if t._is_view():
                self.aliases[id(stopped)] = stopped
            return stopped

        return tree_map_only(torch.Tensor, stop, result)

    def _check_target(self, targets: Any) -> None:
        for target in tree_leaves(targets):
            if isinstance(target, torch.nn.Parameter):
                _lost("a change of a parameter in forward")
            if id(target) in self.aliases:
                _lost("a change in place of a detached tensor")
            if isinstance(target, torch.Tensor):
                base = target._base if target._is_view() else target
                if id(target) in self.arguments or id(base) in self.arguments:
                    _lost("a change in place of an argument")

    def _note_value(self, tensor: torch.Tensor) -> None:
        """Python sees what a tensor holds: the graph holds for this alone."""
        if torch.jit.is_tracing():
            sources = _sources(tensor)
            if any(i >= len(self.arguments) for i in sources):
                _lost(
                    f"a decision of Python code, or a number, at {_place()} that depends on a "
                    "parameter or buffer"
                )
            self.decisive |= sources
        elif tensor.dtype.is_floating_point:  # torch.export would let gradients pass
            _lost("a Python number taken from a tensor")


class _Written:
    """Knows which tensors of a trace hold what they held before a write through another one.

    PyTorch counts the writes to memory; a trace gives each tensor a value of its own, and takes a
    write over to the tensor that was written and, where it is a plain slice, to what it is a slice
    of. All others that share the memory are out of date in the graph.
    """

    def __init__(self) -> None:
        self.versions = WeakIdKeyDictionary()  # the count up to which the graph knows a tensor
        self.sliced = WeakIdKeyDictionary()  # slice → whole

    def check(self, read: Any) -> None:
        """Refuse what is out of date among tensors that are read."""
        for t in _traced(read):
            if self.versions.setdefault(t, t._version) != t._version:
                _lost(f"a change in place, through another view, of a tensor read at {_place()},")

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Remember what a call wrote and made."""
        for t in _traced(args[:1] if _works_in_place(func) else (args, kwargs)):
            if t._version != self.versions.get(t, t._version):
                self.versions[t] = t._version
                whole = self.sliced.get(t)
                if whole is not None and func not in _SCATTERS:
                    self.versions[whole] = whole._version
        for t in _traced(result):
            self.versions[t] = t._version
        if func is torch.Tensor.__getitem__ and args[0] not in self.sliced:
            for t in _traced(result):
                if t._is_view() and t is not args[0]:
                    self.sliced[t] = args[0]


def _traced(values: Any) -> list[torch.Tensor]:
    if not torch.jit.is_tracing():
        return []
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def _place() -> str:
    """Return the line of code, of neither PyTorch's nor ours, that is running."""
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _sources(tensor: torch.Tensor) -> set[int]:
    """Return which inputs of the trace a value is computed from; their extents do not count."""
    found: set[int] = set()
    value = torch._C._get_value_trace(tensor)
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if value.unique() in seen:
            continue
        seen.add(value.unique())
        node = value.node()
        if node.kind() == "prim::Param":
            found |= {i for i, v in enumerate(node.outputs()) if v.unique() == value.unique()}
        elif node.kind() not in _OF_SHAPE:
            waiting += node.inputs()
    return found


def _works_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name.endswith("__"):
        return name == "__setitem__" or name in _IN_PLACE
    return name.endswith("_")


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call; a warning of the tracer is to name the module's line of code, not this one."""
    if not torch.jit.is_tracing():
        return func(*args, **kwargs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = func(*args, **kwargs)
    for w in caught:
        if w.filename == __file__:
            warnings.warn(w.message, w.category, stacklevel=3)
        else:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return result


def _lost(what: str) -> NoReturn:
    raise RuntimeError(f"{what} cannot be said in ONNX")


def _refuse_function(setup: object) -> Any:
    cls = sys._getframe(1).f_locals.get("cls")
    if getattr(cls, "__name__", "").startswith(_DERIVATIVES):
        return _is_setup_context_defined(setup)  # type: ignore[misc]
    _lost(f"the backward of {getattr(cls, '__name__', cls)}, a torch.autograd.Function,")


def _run_checkpointed(run: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """Run what would be computed again in backward: that the engine plans by itself."""
    return run(*args)


def _refused(what: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        _lost(what)

    return refuse


def _given(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SimpleNamespace:
    """Return the arguments of a call by name, defaults included."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments)


def _cross_entropy(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.cross_entropy``: its smoothing of labels, and its probabilities in place of labels."""
    c = _given(F.cross_entropy, args, kwargs)
    if c.input.dim() == 1:  # one row, which ONNX has no form for
        c.input, c.target = c.input[None], c.target[None]
        losses = _cross_entropy(**vars(c))
        return losses.reshape(()) if c.reduction == "none" else losses
    if not c.target.dtype.is_floating_point and c.label_smoothing == 0:
        return F.cross_entropy(*args, **kwargs)
    if c.size_average is not None or c.reduce is not None:
        c.reduction = torch.nn._reduction.legacy_get_string(c.size_average, c.reduce)
    classes = c.input.shape[1]
    weight = None
    if c.weight is not None:
        weight = c.weight.view([-1 if i == 1 else 1 for i in range(c.input.dim())])
    if c.target.dtype.is_floating_point:
        wanted = c.target * (1 - c.label_smoothing) + c.label_smoothing / classes
        wanted = wanted if weight is None else wanted * weight
        losses = -(wanted * F.log_softmax(c.input, 1)).sum(1)
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


def _check_embedding(given: SimpleNamespace) -> None:
    if given.max_norm is not None:
        _lost("max_norm of an embedding, which changes its weight in forward,")
    if given.scale_grad_by_freq:
        _lost("scale_grad_by_freq of an embedding")


def _embedding(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.embedding``: nothing is learned where the index is ``padding_idx``."""
    c = _given(F.embedding, args, kwargs)
    _check_embedding(c)
    rows = F.embedding(c.input, c.weight)
    if c.padding_idx is None:
        return rows
    padding = c.padding_idx if c.padding_idx >= 0 else c.weight.shape[0] + c.padding_idx
    return torch.where((c.input == padding).unsqueeze(-1), stop_gradient(rows), rows)


def _embedding_bag(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.embedding_bag``, which the exporters say as a loop over bags, in float32."""
    c = _given(F.embedding_bag, args, kwargs)
    _check_embedding(c)
    if c.offsets is not None and c.mode == "max":
        _lost("the maximum of bags of different sizes")
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


def _as_strided(
    x: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None
) -> torch.Tensor:
    """``as_strided``: the exporters take any tensor for one that fills its memory in order."""
    order = sorted(range(x.dim()), key=lambda axis: (-x.stride(axis), -x.shape[axis]))
    memory = x.permute(order)
    start = 0 if storage_offset is None else storage_offset - x.storage_offset()
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not memory.is_contiguous() or start < 0 or start + reach >= x.numel():
        _lost("as_strided of a tensor with gaps, or beyond a tensor,")
    if torch.jit.is_tracing():
        warnings.warn("strides are numbers in a trace", torch.jit.TracerWarning, stacklevel=1)
    memory = memory if order == list(range(x.dim())) else memory.clone()
    return memory.as_strided(size, stride, start)


def _dropout(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.dropout``: where it drops nothing it returns its argument, which torch.export copies."""
    c = _given(F.dropout, args, kwargs)
    if c.training and c.p == 1:
        return c.input * torch.zeros(())
    made = c.input.grad_fn is not None  # neither an argument nor a parameter
    return c.input if made and (not c.training or c.p == 0) else F.dropout(*args, **kwargs)


def _stack(tensors: Any, dim: int = 0, **options: Any) -> torch.Tensor:
    """``torch.stack`` of several dtypes, which the exporters join as they are."""
    kind = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    return torch.stack([t.to(kind) for t in tensors], dim, **options)


def _gumbel_softmax(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.gumbel_softmax``, whose ``hard`` detaches within."""
    c = _given(F.gumbel_softmax, args, kwargs)
    soft = F.gumbel_softmax(c.logits, c.tau, dim=c.dim)
    if not c.hard:
        return soft
    picked = soft.max(c.dim, keepdim=True)[1]
    one_hot = torch.zeros_like(soft).scatter(c.dim, picked, 1.0)
    return stop_gradient(one_hot - soft) + soft


def _average_pool(pool: Callable[..., torch.Tensor], axes: int) -> Callable[..., torch.Tensor]:
    """``F.avg_pool2d`` or ``F.avg_pool3d``: their ``divisor_override``."""

    def restated(
        x: torch.Tensor, kernel_size: Any, stride: Any = None, *options: Any, **named: Any
    ) -> torch.Tensor:
        order = ("padding", "ceil_mode", "count_include_pad", "divisor_override")
        named.update(zip(order, options, strict=False))
        divisor = named.pop("divisor_override", None)
        if divisor is None:
            return pool(x, kernel_size, stride, **named)
        if named.get("ceil_mode"):
            _lost("divisor_override of an average pool with ceil_mode")
        named["count_include_pad"] = True
        sizes = [kernel_size] if isinstance(kernel_size, int) else list(kernel_size)
        extent = math.prod(sizes) if len(sizes) == axes else sizes[0] ** axes
        return pool(x, kernel_size, stride, **named) * (extent / divisor)

    return restated


def _interpolate(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.interpolate``: with "nearest-exact" the exporters lose the scale."""
    c = _given(F.interpolate, args, kwargs)
    scales = c.scale_factor if isinstance(c.scale_factor, (list, tuple)) else [c.scale_factor or 1]
    whole = c.recompute_scale_factor or all(s == int(s) for s in scales)
    if c.mode == "nearest-exact" and not whole:
        _lost("nearest-exact interpolation by a scale that is no integer")
    return F.interpolate(*args, **kwargs)


def _instance_norm(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.instance_norm``, which writes its running statistics where no exporter looks."""
    c = _given(F.instance_norm, args, kwargs)
    if c.running_mean is None or not c.use_input_stats:
        return F.instance_norm(*args, **kwargs)
    axes = list(range(2, c.input.dim()))
    with torch.no_grad():
        mean, var = c.input.mean(axes).mean(0), c.input.var(axes).mean(0)
        for kept, new in ((c.running_mean, mean), (c.running_var, var)):
            kept.mul_(1 - c.momentum).add_(stop_gradient(new), alpha=c.momentum)
    return F.instance_norm(c.input, weight=c.weight, bias=c.bias, eps=c.eps)


_is_setup_context_defined = getattr(torch.autograd.function, "_is_setup_context_defined", None)
# as torch.library calls what it makes of an operator's backward
_DERIVATIVES = (
    "GeneratedBackwardFor_steep_",
    *(f"GeneratedBackwardFor_{n.replace('::', '_')}_default" for n in WITH_BACKWARD),
)

_OF_SHAPE = {"aten::size", "aten::numel", "aten::dim", "aten::_shape_as_tensor"}

_TO_PYTHON = {
    *(torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__),
    *(torch.Tensor.__index__, torch.Tensor.__array__, torch.Tensor.__contains__),
    *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy),
}

_DETACH = {torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__}  # type: ignore[attr-defined]

_IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod")}

# Of a slice, these are lost on the way to the whole.
_SCATTERS = {torch.Tensor.__setitem__, torch.Tensor.index_put_, torch.index_put_}

_RESTATED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_DETACH, stop_gradient),
    torch.Tensor.detach_: _refused("detach_"),
    torch.Tensor.data.__set__: _refused("an assignment to Tensor.data"),  # type: ignore[attr-defined]
    torch.Tensor.register_hook: _refused("a hook on the gradient of a tensor"),
    torch.Tensor.as_strided: _as_strided,
    torch.as_strided: _as_strided,
    torch.stack: _stack,
    F.dropout: _dropout,
    F.cross_entropy: _cross_entropy,
    F.embedding: _embedding,
    F.embedding_bag: _embedding_bag,
    F.gumbel_softmax: _gumbel_softmax,
    F.avg_pool2d: _average_pool(F.avg_pool2d, 2),
    F.avg_pool3d: _average_pool(F.avg_pool3d, 3),
    F.instance_norm: _instance_norm,
    F.interpolate: _interpolate,
}

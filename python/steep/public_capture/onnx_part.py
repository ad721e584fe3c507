"""A part of a functional graph in the engine, exported by PyTorch's exporters."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
import torch.fx
from torch.utils.dlpack import from_dlpack, to_dlpack

from steep._steep import ModuleProgram, ProviderChoice

if TYPE_CHECKING:
    import onnx

_UNTRANSLATED = re.compile(r"Error when translating node .*?target=torch\.ops\.([\w.]+)\]", re.S)


Order = tuple[int, ...]
"""The axes of a tensor, from the outermost in memory to the innermost; () where that is 0, 1, …"""


class CannotExport(Exception):
    """A part cannot be exported to ONNX.

    ``operator`` is the operator at fault, such as "aten.mm.default"; "" if none is known.
    """

    def __init__(self, reason: str, operator: str = "") -> None:
        super().__init__(reason)
        self.operator = operator


class OnnxPart:
    """A part of a graph, compiled for the extents of its first arguments.

    Only one thread at a time may make one, and no thread may capture meanwhile (``forks.tracing``).
    Calls from several threads are safe.

    Args:
        graph_module: functional ATen operators; its arguments and results are tensors.
        arguments: those of the first call.
        providers, disabled_passes: as for ``ORTModule``.

    Raises:
        CannotExport: ONNX has no operator for an operation, or the exporter fails.
        ModelError, ProviderError: the engine cannot run it.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        arguments: Sequence[torch.Tensor],
        providers: Sequence[ProviderChoice] = (),
        disabled_passes: Sequence[str] = (),
    ) -> None:
        self.input_orders = [_memory_order(t) for t in arguments]
        (end,) = (n for n in graph_module.graph.nodes if n.op == "output")
        self.is_list = isinstance(end.args[0], (tuple, list))
        values = end.args[0] if self.is_list else end.args
        self.like = [node.meta["val"] for node in values]
        self.output_orders = [_memory_order(t) for t in self.like]
        self.output_axes = [_inverse(order) for order in self.output_orders]
        in_memory_order = _with_orders(graph_module, self.input_orders, self.output_orders)
        tensors = self._dense(arguments)
        # A new thread has none of the modes that are active around the call.
        with ThreadPoolExecutor(1) as pool:
            model = pool.submit(_model_of, in_memory_order, tensors).result()
        self.operators = len(model.graph.node)
        inputs = [value.name for value in model.graph.input]
        if len(inputs) != len(tensors):
            raise CannotExport(f"the exporter keeps {len(inputs)} of {len(tensors)} arguments")
        self.program = ModuleProgram(
            model.SerializeToString(),
            inputs=inputs,
            input_gradients=[""] * len(inputs),
            providers=list(providers),
            disabled_passes=disabled_passes,
        )

    def _dense(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the model's inputs, contiguous: a view of an argument where that is possible."""
        pairs = zip(arguments, self.input_orders, strict=True)
        return [_permute(t.detach(), order).contiguous() for t, order in pairs]

    def __call__(self, *arguments: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return the results, with the memory layout of PyTorch's results.

        Raises ModelError and ProviderError at the first call; DataError.
        """
        arrays = [to_dlpack(t) for t in self._dense(arguments)]
        capsules, *_ = self.program.forward(arrays, False)
        dense = map(from_dlpack, capsules)
        results = [
            _laid_out(_permute(t, axes), like)
            for t, axes, like in zip(dense, self.output_axes, self.like, strict=True)
        ]
        return tuple(results) if self.is_list else results[0]


def _memory_order(t: torch.Tensor) -> Order:
    """Return the order of axes in which a tensor is contiguous; () where there is none."""
    if t.is_contiguous():
        return ()
    order = tuple(sorted(range(t.dim()), key=lambda axis: -t.stride(axis)))
    return order if t.permute(order).is_contiguous() else ()


def _permute(t: torch.Tensor, order: Order) -> torch.Tensor:
    return t.permute(order) if order else t


def _inverse(order: Order) -> Order:
    return tuple(order.index(axis) for axis in range(len(order)))


def _with_orders(
    graph_module: torch.fx.GraphModule, inputs: Sequence[Order], outputs: Sequence[Order]
) -> torch.fx.GraphModule:
    """Return a copy for the exporter, whose arguments and results are permuted by these orders.

    A transposed weight is then an input as it lies in memory, and the engine multiplies by it
    without a copy.
    """
    graph = copy.deepcopy(graph_module.graph)
    _widen_layer_norms(graph)
    places = [n for n in graph.nodes if n.op == "placeholder"]
    first = next(n for n in graph.nodes if n.op != "placeholder")
    for place, order in zip(places, inputs, strict=True):
        if order:
            with graph.inserting_before(first):
                view = graph.call_function(torch.permute, (place, list(_inverse(order))))
            place.replace_all_uses_with(
                view, delete_user_cb=lambda user, view=view: user is not view
            )
    (end,) = (n for n in graph.nodes if n.op == "output")
    is_list = isinstance(end.args[0], (tuple, list))
    results = list(end.args[0]) if is_list else list(end.args)
    with graph.inserting_before(end):
        for i, order in enumerate(outputs):
            if order:
                results[i] = graph.call_function(torch.permute, (results[i], list(order)))
    end.args = (tuple(results),) if is_list else tuple(results)
    return torch.fx.GraphModule(graph_module, graph)


def _widen_layer_norms(graph: torch.fx.Graph) -> None:
    """Compute a layer normalization of 16 bits in the dtype of its weights, in place.

    Autocast leaves the weights in float32. PyTorch's kernel takes both types, ONNX's operator one.
    """
    for node in list(graph.nodes):
        if str(node.target) != "aten.native_layer_norm.default":
            continue
        x, _, *weights, _ = node.args
        narrow = x.meta["val"].dtype
        wide = next((w.meta["val"].dtype for w in weights if w is not None), narrow)
        if wide == narrow:
            continue
        with graph.inserting_before(node):
            node.replace_input_with(x, graph.call_method("to", (x, wide)))
        for result in [user for user in node.users if user.args[1] == 0]:
            with graph.inserting_after(result):
                cast = graph.call_method("to", (result, narrow))
            result.replace_all_uses_with(cast, lambda user, cast=cast: user is not cast)


def _laid_out(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a result with the strides that the graph's other operators expect.

    If elements share memory (stride 0), the strides do not matter: parts contain no operator that
    depends on them.
    """
    shared = any(s == 0 and n > 1 for s, n in zip(like.stride(), like.shape, strict=True))
    if shared or result.stride() == like.stride():
        return result
    laid_out = torch.empty_strided(like.shape, like.stride(), dtype=result.dtype)
    return laid_out.copy_(result)


def _model_of(
    graph_module: torch.fx.GraphModule, arguments: Sequence[torch.Tensor]
) -> onnx.ModelProto:
    """Export the graph, and return the model. Raises CannotExport."""
    try:
        with torch.no_grad(), _quiet("torch.onnx", "torch.export"):
            program = torch.export.export(graph_module, tuple(arguments), strict=False)
            exported_program = torch.onnx.export(
                program, dynamo=True, verbose=False, optimize=False
            )
        assert exported_program is not None  # None only if a file is given
        return exported_program.model_proto
    except Exception as e:
        causes = [str(cause) for cause in _causes(e)]
        operator_name = next(
            (m.group(1) for text in causes if (m := _UNTRANSLATED.search(text))), ""
        )
        reason = (
            f"ONNX has no operator for {operator_name}"
            if operator_name
            else causes[-1].strip().split("\n")[0]
        )
        raise CannotExport(reason, operator_name) from e


def _causes(e: BaseException | None) -> Iterator[BaseException]:
    while e is not None:
        yield e
        e = e.__cause__


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Silence warnings and these loggers, except for errors, inside the ``with`` block.

    One thread at a time: levels and filters belong to the process.
    """
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

"""Compiles a graph that Dynamo captured for the engine.

The captured graph consists of PyTorch calls on tensors, and on numbers for symbolic extents.
Parameters and buffers are inputs like any other. A mutation of an argument becomes a result that is
copied back. For a result that is a view of an argument, or of another result, PyTorch makes the
view.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from steep.graph.autograd_node import differentiable
from steep.graph.captured_graph import copy_graph
from steep.graph.engine_graph import EngineGraph
from steep.graph.gradient_order import in_gradient_order, views_in_gradient_order
from steep.graph.layouts import layout_of
from steep.graph.lowered import LoweredGraph, NothingToRun
from steep.inspection import write_log
from steep.lowering.aliasing import first_writer
from steep.lowering.capture_context import CaptureContext
from steep.lowering.extents import hint
from steep.lowering.lower import CannotLower, cannot_lower, refusal
from steep.lowering.python_numbers import reads_number, takes_numbers
from steep.lowering.unsupported import refuse_sparse, refuse_without_derivative
from steep.onnx_graph.gradient_reach import find_gradient_reach
from steep.patching.signals import deliver_signals

Made = TypeVar("Made")

log = logging.getLogger("steep")


def compile_captured(
    graph_module: torch.fx.GraphModule, examples: Sequence[Any], context: CaptureContext
) -> CompiledGraph:
    """Return a compiled graph, which runs on the values of the captured graph's placeholders.

    Raises:
        NothingToRun: the graph computes nothing.
        CannotLower: the graph cannot be lowered to ONNX.
    """
    return compile_with(graph_module, examples, context, CompiledGraph)


def compile_with(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    context: CaptureContext,
    graph_factory: Callable[[LoweredGraph], Made],
) -> Made:
    """Lower a captured graph to ONNX, and return ``graph_factory(lowered)``.

    Raises the errors of ``compile_captured``.

    Python numbers are inputs of the model, except where an operation does not accept a tensor, such
    as the rate of a dropout.
    """
    graph = graph_module.graph
    fixed_nodes: frozenset[str] | None = frozenset() if takes_numbers(graph) else None
    while True:
        try:
            return _compile_once(graph_module, examples, context, fixed_nodes, graph_factory)
        except CannotLower as error:
            if fixed_nodes is None:
                raise
            if error.node not in fixed_nodes and reads_number(graph, error.node):
                fixed_nodes |= {error.node}
            elif error.without_operator:  # no number is the cause
                raise
            else:
                fixed_nodes = None
            log.debug("a graph is lowered again, with its numbers as constants: %s", error)


def _compile_once(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    context: CaptureContext,
    fixed_nodes: frozenset[str] | None,
    graph_factory: Callable[[LoweredGraph], Made],
) -> Made:
    """Lower a captured graph and call ``graph_factory``; lower it anew if a cached model fails.

    A model is stored in the cache only after ``graph_factory`` has accepted it.
    """
    while True:
        with _errors_refuse():
            lowered = LoweredGraph(copy_graph(graph_module), examples, context, fixed_nodes)
        try:
            with _errors_refuse():
                made = graph_factory(lowered)
        except CannotLower as e:
            if not lowered.cached:
                raise
            log.warning("ignoring a graph of the cache that cannot be used: %s", e)
            context = dataclasses.replace(context, read_cache=False)
        else:
            lowered.store()
            return made


@contextlib.contextmanager
def _errors_refuse() -> Iterator[None]:
    """Convert any error of the exporter, the engine or a rewrite to CannotLower.

    Too little memory is no property of the graph: PyTorch must not run what the limit refuses.
    """
    try:
        yield
    except (CannotLower, NothingToRun, MemoryError):
        raise
    except Exception as e:
        _tell_first(e)
        raise refusal(e) from e


def _tell_first(e: Exception) -> None:
    """Log the first error of each type and place: a defect in Steep would look like a refusal."""
    place = traceback.extract_tb(e.__traceback__)[-1]
    first = (type(e), place.filename, place.lineno)
    if first not in _told_reasons:
        _told_reasons.add(first)
        kind = f"{type(e).__module__}.{type(e).__qualname__}"
        where = f"{place.filename}:{place.lineno}"
        write_log("breaks", f"a graph cannot be lowered, since {where} raised {kind}: {e}")


_told_reasons: set[tuple[type, str, int | None]] = set()


class CompiledGraph:
    """A captured graph that runs in the engine."""

    def __init__(self, lowered: LoweredGraph) -> None:
        deliver_signals()
        self.lowered = lowered
        context, inputs = lowered.context, lowered.inputs
        fakes = [tensor.fake for tensor in lowered.tensors]
        reach_of_results = [write.reach for write in lowered.writes]
        reach_of_results += [value.reach for value in lowered.values]
        model = lowered.model if context.rewrite is None else context.rewrite(lowered.model)
        wanted_inputs = []
        if context.grad_mode:
            reach, history = find_gradient_reach(model.graph), set().union(*reach_of_results)
            candidates = [i for i in inputs if fakes[i].requires_grad]
            wanted_inputs = [i for i in candidates if i in history or f"arg_{i}" in reach]
        self.engine_graph = EngineGraph(
            model.SerializeToString(),
            [f"arg_{i}" for i in inputs],
            inputs,
            len(fakes),
            tuple(in_gradient_order(lowered.graph, wanted_inputs)),
            precision=context.precision,
            providers=context.providers,
            disabled_passes=context.disabled_passes,
            memory_limit=context.memory_limit,
            reach_of_results=reach_of_results if wanted_inputs else (),
            saved_inputs=[tensor.saved for tensor in lowered.tensors],
            saved_results=[False for _ in lowered.writes] + [v.saved for v in lowered.values],
            inputs_in_place=[tensor.in_place for tensor in lowered.tensors],
            # the results of writes are copied at once
            results_in_place=[True for _ in lowered.writes] + [False for _ in lowered.values],
            layouts=[None for _ in lowered.writes] + [layout_of(v.example) for v in lowered.values],
        )
        self._written = {k for k, i in enumerate(lowered.positions) if i in lowered.write_targets}
        self._writes_history = any(write.changes_history for write in lowered.writes)
        # dtypes and extents at the capture
        self.types = [(str(fakes[i].dtype)[6:], [hint(d) for d in fakes[i].shape]) for i in inputs]
        self._check_history()
        # An unusable model fails here, while PyTorch can run the graph, and before it is cached.
        # What a memory limit refuses in a new graph is an error of the first call.
        if lowered.cached or not context.memory_limit:
            self.engine_graph.program.plan_for(self.types, self.engine_graph.gradients)

    def _check_history(self) -> None:
        """Raise CannotLower if a gradient would get lost, or a write would change its history."""
        if not self.lowered.context.grad_mode:
            return
        lowered, constant = self.lowered, self.engine_graph.constant_results
        refuse_sparse(lowered.graph)
        refuse_without_derivative(lowered.graph)
        for write, is_constant in zip(lowered.writes, constant, strict=False):
            if write.changes_history and (is_constant or lowered.changes_modes):
                writer = first_writer(lowered.graph, lowered.tensors[write.tensor].fake)
                reason = "forward changes an argument that needs a gradient"
                raise cannot_lower(reason, writer, "change it after forward, under no_grad()")
        for value, is_constant in zip(lowered.values, constant[len(lowered.writes) :], strict=True):
            example, node = value.example, value.node
            if is_constant and isinstance(example, torch.Tensor) and example.requires_grad:
                reason = f"the gradient of {node.name} gets lost"
                raise cannot_lower(reason, node, "detach() what needs no gradient")

    def __call__(self, *arguments: object) -> object:
        """Run the graph on the values of the captured graph's placeholders; return its outputs."""
        return self.write_back_and_return(
            arguments, self.run_engine(self.prepare_inputs(arguments))
        )

    def prepare_inputs(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return the engine's inputs, with random numbers that are drawn now."""
        tensors = self.lowered.call_tensors(arguments)
        for k in range(len(self.lowered.positions)):
            tensor = tensors[k]
            # backward may read the value before the write; autograd cannot save inference tensors
            if k in self._written or tensor.is_inference():
                tensors[k] = tensor.clone()
            # a copy for the engine: later writes to the original do no harm
            elif not tensor.is_contiguous():
                tensors[k] = tensor.contiguous()
        return tensors

    def run_engine(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the engine; return the new values of written arguments, then the computed values."""
        graph = self.engine_graph
        if graph.gradients and torch.is_grad_enabled():
            inputs = views_in_gradient_order([tensors[i] for i in graph.wanted_inputs])
            return differentiable(graph, tensors, inputs)
        return graph.run(tensors, gradients=False)[0]

    def write_back_and_return(
        self, arguments: Sequence[Any], engine_results: list[torch.Tensor]
    ) -> Any:
        """Copy new values to written arguments; return the captured graph's outputs."""
        lowered = self.lowered
        values = engine_results[len(lowered.writes) :]
        lowered.check(arguments, values)
        enabled = torch.is_grad_enabled()
        with torch.no_grad():  # arguments keep their autograd history
            for write, value in zip(lowered.writes, engine_results, strict=False):
                if self._writes_history:
                    torch.set_grad_enabled(write.changes_history and enabled)
                arguments[write.argument].copy_(value)
        return lowered.results(arguments, values)

    def dump(self, gradients: bool = True, form: str = "text") -> str:
        """Return graph and plan as text, for the extents of the first call.

        ``form`` is "text", "passes" or "html".
        """
        return self.engine_graph.program.dump(self.types, gradients, form)

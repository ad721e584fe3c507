"""Lowers a graph of PyTorch calls, as Dynamo captured it, to an ONNX model.

The graph is traced again to functional ATen operators, with the symbols that Dynamo gave its
extents: if this trace specialises an extent, Dynamo guards it. translation.py translates the
result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import preserve_node_meta

from steep.lowering.aliasing import all_written_by, written_by
from steep.lowering.autocast_regions import Regions, write_casts
from steep.lowering.capture_context import CaptureContext
from steep.lowering.export_mode import export_mode
from steep.lowering.ops.autograd_function import Interpreter
from steep.lowering.random_inputs import DrawDependsOnResults, Draws, take_draws
from steep.lowering.reasons import CannotTranslate, is_users, operation, summary_of
from steep.lowering.training_semantics import Watch, keep_semantics
from steep.lowering.translation import translate
from steep.patching.restore import without_transforms
from steep.patching.signals import DelayedSignals, deliver_signals
from steep.patching.substitution import attribute_set
from steep.torch_internals.aot_autograd import aot_export_module
from steep.torch_internals.pytree import tree_leaves

WITHIN = "steep.within"
"""Meta key of an operation of an expansion: the expanded operation's name in the captured graph."""


def outputs_of(end: torch.fx.Node) -> list[Any]:
    """Return the values of a graph's output node as a list, also for a single value."""
    values = end.args[0]
    return list(values) if isinstance(values, (tuple, list)) else [values]


_NO_OPERATOR = "ONNX has no operator for"


class CannotLower(Exception):
    """The engine cannot run an operation; the message says why.

    Args:
        reason: what the operation does, or the error of PyTorch's.
        node: the operation's name in the captured graph; "" if no single operation is the cause.
        place: its line as FILE:LINE; "" if unknown.
        remedy: what to write instead; "" finds it by the reason.

    Attributes: the arguments, and
        others: errors of further operations.
    """

    def __init__(self, reason: str, node: str, place: str = "", remedy: str = "") -> None:
        self.reason, self.node, self.place = reason, node, place
        self.remedy = remedy or operation(reason)
        self.others: list[CannotLower] = []
        super().__init__(f"{reason} ({place}): {self.remedy}" if place else reason)

    @property
    def without_operator(self) -> bool:
        """Whether ONNX has no operator for the operation, whatever its values."""
        return self.reason.startswith(_NO_OPERATOR)


def cannot_lower(reason: str, at: torch.fx.Node | None, remedy: str = "") -> CannotLower:
    """Return a refusal of Steep's own, of the operation ``at``."""
    name = "" if at is None else at.meta.get(WITHIN, at.name)
    return CannotLower(reason, name, line_of(at), remedy)


def raise_together(refusals: list[CannotLower]) -> None:
    """Raise the first of some refusals, with the others; return if there are none."""
    if refusals:
        refusals[0].others = refusals[1:]
        raise refusals[0]


class _Interpreter(Interpreter):
    """Remembers the operation that failed, and what Dynamo knows about autograd histories."""

    at: torch.fx.Node | None = None
    watch: Watch | None = None

    def run_node(self, n: torch.fx.Node) -> object:
        deliver_signals()
        self.at = n
        if self.watch is not None:
            # writes to arguments that need a gradient are refused later, when all are known
            within = [t for t in map(_first, all_written_by(n)) if t.op != "placeholder"]
            self.watch.writes_into_history = any(map(_has_history, within))
            self.watch.of_histories = any(map(_has_history, n.all_input_nodes))
        return super().run_node(n)


def _first(target: torch.fx.Node) -> torch.fx.Node:
    """Return the tensor that the first of several successive in-place calls wrote."""
    while (before := written_by(target)) is not None:
        target = before
    return target


def _has_history(node: torch.fx.Node) -> bool:
    """Return whether a node may need a gradient; True if Dynamo does not know."""
    example = node.meta.get("example_value")
    parts = [t for t in tree_leaves(example) if isinstance(t, torch.Tensor)]
    return example is None or any(t.requires_grad for t in parts)


class _TracedModule(torch.nn.Module):
    """Runs a captured graph so that a trace contains all that it computes, gradients included."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__()
        self.interpreter = _Interpreter(graph_module)

    def __call__(self, *tensors: torch.Tensor) -> tuple[object, ...]:
        """Run the graph without global module hooks: Dynamo has captured those already."""
        return self.forward(*tensors)

    def forward(self, *tensors: torch.Tensor) -> tuple[object, ...]:
        with keep_semantics() as self.interpreter.watch, preserve_node_meta():
            results = self.interpreter.run(*tensors)
            # constant numbers become tensors, as the other results
            return tuple(torch.tensor(r) if isinstance(r, (int, float)) else r for r in results)


def refusal(e: Exception, at: torch.fx.Node | None = None) -> CannotLower:
    """Convert an error of PyTorch or a library, raised at the operation ``at``, to CannotLower."""
    if isinstance(e, CannotLower):
        return e
    if isinstance(e, DrawDependsOnResults):
        return CannotLower(str(e), "" if at is None else at.name, line_of(at))
    text = str(e).strip()
    reason = summary_of(e)
    if match := re.search(r"Error when translating node .*?target=torch\.ops\.([\w.]+)\]", text):
        reason = f"{_NO_OPERATOR} {match.group(1)}"
        cause = _innermost(e)
        # raised by one of Steep's translations
        if isinstance(cause, NotImplementedError) and str(cause):
            reason = f"{match.group(1)}: {cause}"
    return cannot_lower(reason, at)


def _innermost(e: BaseException) -> BaseException:
    while e.__cause__ is not None:
        e = e.__cause__
    return e


def line_of(at: torch.fx.Node | None) -> str:
    """Return the last line of user code that led to an operation, as FILE:LINE."""
    trace = at.meta.get("stack_trace") if at is not None else None
    places = re.findall(r'File "([^"]+)", line (\d+)', trace or "")
    own = [p for p in places if is_users(p[0])] or places
    return ":".join(own[-1]) if own else ""


@dataclasses.dataclass(frozen=True)
class OnnxGraph:
    """A captured graph in ONNX.

    Attributes:
        model: its inputs are arg_0, arg_1 … by position: the graph's inputs, then random numbers.
        write_targets: positions of the inputs to which its first outputs are written.
        draws: draws the random numbers before each call.
        cached, store: as for ``Translation``.
    """

    model: onnx.ModelProto
    write_targets: list[int]
    draws: Draws
    cached: bool
    store: Callable[[], object]


def lower(
    graph_module: torch.fx.GraphModule,
    fakes: list[torch.Tensor],
    regions: Regions,
    context: CaptureContext,
) -> OnnxGraph:
    """Lower a captured graph to ONNX; ``fakes`` are the fake values of its placeholders.

    Raises CannotLower.
    """
    mode = context.fake_mode
    traceable = _TracedModule(graph_module)
    with (
        DelayedSignals() as signals,
        export_mode(),
        without_transforms(),
        attribute_set(mode, "allow_non_fake_inputs", True),  # constants are not fake
        _own_extents(mode.shape_env),
        signals.tracing(),
    ):
        try:
            aten_module, signature = aot_export_module(
                traceable, fakes, trace_joint=False, pre_dispatch=True
            )
        except Exception as e:  # tracing may raise any error
            raise refusal(e, traceable.interpreter.at) from e
        _without_tokens(aten_module.graph, signature.input_tokens)
        names = [n.name for n in aten_module.graph.nodes if n.op == "placeholder"]
        write_casts(aten_module.graph, regions, lambda n: _origin_of(n, graph_module.graph))
        write_targets = [names.index(n) for n in signature.user_inputs_to_mutate.values()]
        try:
            draws = take_draws(aten_module, fakes)
            translation = translate(aten_module, mode.shape_env, read_cache=context.read_cache)
        except DrawDependsOnResults as e:
            raise refusal(e, _origin(e.node, aten_module.graph, graph_module.graph)) from e
        except CannotTranslate as e:
            at = _origin(e.node, aten_module.graph, graph_module.graph)
            error = cannot_lower(str(e), at) if e.cause is None else refusal(e.cause, at)
            for name, operator in e.others.items():
                other = _origin(name, aten_module.graph, graph_module.graph)
                if other is not None and other.name != error.node:
                    reason = f"{_NO_OPERATOR} {operator}"
                    error.others.append(CannotLower(reason, other.name, line_of(other)))
            raise error from e
    return OnnxGraph(translation.model, write_targets, draws, translation.cached, translation.store)


def _without_tokens(graph: torch.fx.Graph, names: list[str]) -> None:
    """Remove effect tokens if nothing uses them.

    PyTorch adds them, as first inputs and results, for checks within an operator that is not
    decomposed (``linalg.cholesky``).
    """
    (end,) = (n for n in graph.nodes if n.op == "output")
    for token in [n for n in graph.nodes if n.op == "placeholder" and n.name in names]:
        if set(token.users) == {end}:
            end.args = (tuple(value for value in end.args[0] if value is not token),)
            graph.erase_node(token)


@contextlib.contextmanager
def _own_extents(env: ShapeEnv | None) -> Iterator[None]:
    """Drop the unbacked symbols of this trace at its end; the next trace would look for them."""
    pending = [] if env is None else env.pending_fresh_unbacked_symbols
    before = list(pending)
    try:
        yield
    finally:
        pending[:] = before


def _origin(name: str, graph: torch.fx.Graph, source: torch.fx.Graph) -> torch.fx.Node | None:
    """Return the captured node from which the node of this name was made."""
    node = next((n for n in graph.nodes if n.name == name), None)
    return None if node is None else _origin_of(node, source)


def _origin_of(node: torch.fx.Node, source: torch.fx.Graph) -> torch.fx.Node | None:
    if not node.meta.get("from_node"):
        return None
    made_from = node.meta["from_node"][-1].name
    return next((n for n in source.nodes if n.name == made_from), None)

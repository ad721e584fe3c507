"""A backend of Dynamo: runs each captured graph in the engine, or else in PyTorch."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Protocol

import torch

import steep.graph
import steep.verify
from steep._steep import ProviderChoice
from steep.dynamo.forks import refuse_to_capture
from steep.dynamo.report import GraphReport
from steep.errors import ModelError
from steep.graph.autograd_node import has_tangents, is_observed
from steep.graph.captured_graph import copy_graph
from steep.graph.compiled_graph import CompiledGraph, compile_captured, compile_with
from steep.graph.flops import Arithmetic
from steep.graph.lowered import LoweredGraph, NothingToRun
from steep.graph.partition import compile_parts
from steep.inspection import write_log
from steep.lowering.aliasing import guard_aliasing
from steep.lowering.capture_context import CaptureContext
from steep.lowering.func_transforms import in_pytorch
from steep.lowering.lower import CannotLower
from steep.patching.signals import deliver_signals
from steep.patching.substitution import changes_lock
from steep.torch_internals.dispatch import FakeTensor
from steep.torch_internals.dynamo import trace_rules
from steep.verify.difference import should_verify
from steep.verify.verified_graph import VerifiedGraph, compile_verified

log = logging.getLogger("steep")

# Dynamo must not trace the code that runs a compiled graph. A captured function that computes
# gradients calls this code in backward. Whole modules are listed, so that no function is missed.
for _room in (steep.graph, steep.verify):
    trace_rules.add(_room)


class RunnableGraph(Protocol):
    """Runs a lowered graph on the values of the captured graph's placeholders."""

    lowered: LoweredGraph

    def __call__(self, *arguments: object) -> object:
        """Return the values of the captured graph's output node."""


class _CallState(threading.local):
    """State of a thread's call of a captured module, shared with the graphs made in the call.

    Attributes:
        arguments: the arguments of the call; empty after the call.
        training: whether the captured module is in training mode.
        place: FILE:LINE of the captured function.
        because: the guard of an earlier graph that failed.
        failures: the functions at which Dynamo failed, and why.
    """

    arguments: Sequence[Any] = ()
    training = False
    place = ""
    because = ""

    def __init__(self) -> None:
        self.failures: list[tuple[CodeType, str]] = []


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """A compiled graph.

    Attributes:
        call: runs it.
        graphs: its parts that run in the engine.
        refusals: why PyTorch runs the operations between them.
    """

    call: Callable[..., Any]
    graphs: Sequence[RunnableGraph]
    refusals: Sequence[CannotLower] = ()


class DynamoBackend:
    """A backend of ``torch.compile``: runs each graph in the engine, else in PyTorch.

    Args:
        precision: a function that returns "fp32", "bf16" or "fp16"; it is called for each graph.
        strict: raise ModelError for a graph that the engine cannot run.
        record: called with a report of each graph, also of graphs that PyTorch runs.
        graph_factory: makes a runnable graph of a lowered graph.
        fallback_advice: what makes PyTorch run the rest, for the remedy of errors.
        verify: compare the first step of each ``CompiledGraph`` with PyTorch's; None: use
            ``STEEP_VERIFY``.
        providers: where a ``CompiledGraph`` runs.
        disabled_passes: rewrites that are left out of its graph.
        memory_limit: the limit for a call of a ``CompiledGraph``, as the engine reads it; "" for
            none.
    """

    def __init__(
        self,
        precision: Callable[[], str],
        *,
        strict: bool = False,
        record: Callable[[GraphReport], None] = lambda report: None,
        graph_factory: Callable[[LoweredGraph], RunnableGraph] = CompiledGraph,
        fallback_advice: str = 'let PyTorch run it: fallback="parts"',
        verify: bool | None = None,
        providers: Sequence[ProviderChoice] = (),
        disabled_passes: Sequence[str] = (),
        memory_limit: str = "",
    ) -> None:
        self.disabled_passes = tuple(disabled_passes)
        self.memory_limit = memory_limit
        self.precision = precision
        self.providers = providers
        self.graph_factory = graph_factory
        self.fallback_advice = fallback_advice
        self.strict = strict
        self.record = record
        self.verify = verify
        self.local = _CallState()
        self.ran_in_engine = False  # whether any graph has
        self.logged_texts: set[str] = set()
        # A set in order of creation; a graph leaves it when Dynamo drops the graph.
        self.graphs: weakref.WeakKeyDictionary[RunnableGraph, None] = weakref.WeakKeyDictionary()

    def __call__(
        self, graph_module: torch.fx.GraphModule, examples: Sequence[Any]
    ) -> Callable[..., Any]:
        """Return a function that runs the graph: from its placeholders to its outputs."""
        refuse_to_capture()
        start = time.perf_counter()
        context = CaptureContext.of_this_call(
            self.precision(),
            self.providers,
            self.disabled_passes,
            memory_limit=self.memory_limit,
            verify=self.graph_factory is CompiledGraph and should_verify(self.verify),
        )
        deliver_signals()
        original = copy_graph(graph_module)  # the report counts its arithmetic later
        try:
            compiled = self._compile(graph_module, examples, context)
        except NothingToRun:
            return in_pytorch(graph_module)
        except CannotLower as e:
            reason = str(e) if e.place else f"{e} ({self.local.place}): {e.remedy}"
            # recorded before _leave_to_pytorch may raise: report() lists refused graphs too
            self._record(original, start, reason=reason)
            self._leave_to_pytorch(reason, e)
            return in_pytorch(graph_module)
        self._record(original, start, compiled.graphs, compiled.refusals)
        self.graphs.update(dict.fromkeys(compiled.graphs))
        self._say_refused(compiled.refusals)
        # after the compilation: the check is on the arguments of the whole graph, not of a part
        advice = self.fallback_advice if self.strict else ""
        call = guard_aliasing(
            compiled.call, graph_module.forward, compiled.graphs, examples, advice
        )
        return self._entry(graph_module, call)

    def _compile(
        self, graph_module: torch.fx.GraphModule, examples: Sequence[Any], context: CaptureContext
    ) -> _Compiled:
        """Compile a graph as a whole, or else in parts. Raises NothingToRun and CannotLower."""
        with changes_lock():
            try:
                graph: RunnableGraph
                if context.verify:
                    graph = compile_verified(graph_module, examples, context)
                else:
                    graph = compile_with(graph_module, examples, context, self.graph_factory)
                return _Compiled(graph, [graph])
            except CannotLower as e:
                if self.strict:
                    raise
                compile_part = compile_verified if context.verify else compile_captured
                call, parts, refusals = compile_parts(
                    graph_module, examples, context, e, compile_part
                )
                return _Compiled(call, [*parts], refusals)

    def _leave_to_pytorch(self, reason: str, e: CannotLower) -> None:
        """Log that PyTorch runs a graph. Raises ModelError if it must not."""
        if self.strict:
            raise ModelError(
                "A part of the module cannot run in the engine.",
                received=reason,
                remedy=f"change the code named above, or {self.fallback_advice}",
            ) from e
        write_log("breaks", f"PyTorch runs a graph that cannot be lowered to ONNX: {reason}")
        log.warning("PyTorch runs a graph that cannot be lowered to ONNX: %s", reason)

    def _say_refused(self, refusals: Sequence[CannotLower]) -> None:
        """Log the operations that PyTorch runs between parts; each warning comes once."""
        for why in refusals:
            write_log("breaks", f"PyTorch runs one operation between two graphs: {why}")
        for text in {str(why) for why in refusals} - self.logged_texts:
            log.warning("PyTorch runs one operation between two graphs: %s", text)
            self.logged_texts.add(text)

    def _entry(
        self, graph_module: torch.fx.GraphModule, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return what Dynamo calls: ``call``, or PyTorch where nothing is computed."""

        def run(*arguments: object) -> object:
            if is_observed() or FakeTensor in map(type, arguments):
                return graph_module.forward(*arguments)
            if has_tangents(arguments):
                raise ModelError(
                    "An argument has a tangent: forward-mode derivatives are not supported.",
                    expected="reverse-mode derivatives (backward)",
                    remedy="leave this call to PyTorch: call the wrapped module",
                )
            self.ran_in_engine = True
            return call(*arguments)

        # Dynamo disables tracing itself, except for graphs that DDPOptimizer makes.
        uncaptured: Callable[..., Any] = torch.compiler.disable(run)
        return uncaptured

    def _record(
        self,
        original: torch.fx.GraphModule,
        start: float,
        graphs: Sequence[RunnableGraph] = (),
        refusals: Sequence[CannotLower] = (),
        reason: str = "",
    ) -> None:
        """Report a captured graph; ``reason`` says why PyTorch runs all of it."""
        report = GraphReport(
            "PyTorch" if reason else "dynamo",
            reason,
            self.local.training,
            time.perf_counter() - start,
            cached=all(graph.lowered.cached for graph in graphs) and not reason,
            place=self.local.place,
            because=self.local.because,
            operators=sum(graph.lowered.operators for graph in graphs),
            in_torch=tuple(dict.fromkeys(str(why) for why in refusals)),
            arithmetic=Arithmetic(original, None if reason else {why.node for why in refusals}),
            outcomes=tuple(p.outcome for p in graphs if isinstance(p, VerifiedGraph)),
        )
        write_log("graphs", str(report))
        self.record(report)

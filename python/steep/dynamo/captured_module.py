"""A module whose calls Dynamo captures, with Steep's settings and additional guards."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from steep._steep import ProviderChoice
from steep.dynamo.dynamo_backend import DynamoBackend, RunnableGraph
from steep.dynamo.forks import refuse_to_capture
from steep.dynamo.patches.absence_guards import absence_guards
from steep.dynamo.patches.answer_guards import answer_guards
from steep.dynamo.patches.cached_functions import cached_functions
from steep.dynamo.patches.causal_masks import causal_masks
from steep.dynamo.patches.changed_tensors import changed_tensors
from steep.dynamo.patches.class_guards import class_guards
from steep.dynamo.patches.cumulative_batch_norm import means_over_batches
from steep.dynamo.patches.ddp_buckets import buckets
from steep.dynamo.patches.exact_numbers import exact_numbers
from steep.dynamo.patches.extra_guards import extra_guards
from steep.dynamo.patches.extra_tracing import extra_tracing
from steep.dynamo.patches.graph_breaks import graph_breaks, left_this_time, left_to_pytorch
from steep.dynamo.patches.interrupts import interruptible_calls
from steep.dynamo.patches.layer_frames import layer_frames
from steep.dynamo.patches.numpy_arrays import arrays
from steep.dynamo.patches.process_state import process_state
from steep.dynamo.patches.raise_branches import raise_branches
from steep.dynamo.patches.reentrant_checkpoints import reentrant_checkpoints
from steep.dynamo.patches.refused_writes import refused_writes
from steep.dynamo.patches.transformer_layers import drops_padding, layers_as_in_eager
from steep.dynamo.patches.value_branches import branches
from steep.dynamo.recompiles import Recaptures, why_again
from steep.dynamo.report import GraphReport
from steep.errors import Error, ModelError
from steep.graph.compiled_graph import CompiledGraph
from steep.graph.lowered import LoweredGraph
from steep.inspection import write_log
from steep.lowering.autograd_grad import trace_autograd_grad
from steep.lowering.ops.autograd_function import whole_backwards
from steep.lowering.ops.ctc import known_to_tracers
from steep.lowering.ops.huber import huber_losses
from steep.lowering.ops.recurrent import keep_recurrent_layers
from steep.lowering.reasons import (
    graph_break_text,
    has_no_operation,
    is_users,
    place,
    skipped_function_errors,
    skipped_function_text,
    summary_of,
)
from steep.patching.dynamo_settings import CAPTURE, values_of
from steep.patching.restore import silence_loggers, without_transforms
from steep.patching.signals import DelayedSignals
from steep.patching.substitution import Change
from steep.torch_internals.dynamo import (
    BackendCompilerFailed,
    CacheEntry,
    ConvertFrameReturn,
    DeletedGuardManagerWrapper,
    ResumePrologueTracingError,
    Unsupported,
    UserError,
    cached_backends,
    config,
    convert_frame,
    graph_break_reasons,
    maybe_mark_dynamic,
    note_backend,
    optimize,
    trace_rules,
)
from steep.torch_internals.pytree import tree_leaves

log = logging.getLogger("steep")

IMAGE = 4
"""Number of dimensions of a batch of images."""

# Errors of Dynamo whose messages contain a remedy.
_SAID = (BackendCompilerFailed, Unsupported, UserError)


class CapturedModule:
    """Runs a module; its captured graphs run in the engine.

    Args:
        module: the module to capture; not an ORTModule (unwrap it by ``ort_module.innermost``).
        precision: as for ``DynamoBackend``.
        record: as for ``DynamoBackend``.
        whole: raise ModelError if the module does not become one graph in the engine. Otherwise
            PyTorch runs the code between graphs, and graphs that the engine cannot run.
        graph_factory, fallback_advice: as for ``DynamoBackend``.
        first: shapes of the arguments of an earlier call that was captured before; None: the first
            call gives them.
        verify, providers, disabled_passes, memory_limit: as for ``DynamoBackend``.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        precision: Callable[[], str],
        record: Callable[[GraphReport], None],
        *,
        whole: bool,
        graph_factory: Callable[[LoweredGraph], RunnableGraph] = CompiledGraph,
        fallback_advice: str = 'let PyTorch run it: fallback="parts"',
        first: Sequence[torch.Size] | None = None,
        verify: bool | None = None,
        providers: Sequence[ProviderChoice] = (),
        disabled_passes: Sequence[str] = (),
        memory_limit: str = "",
    ) -> None:
        self._module = module
        self._whole = whole
        self.left_on_purpose = False  # whether PyTorch ran a call, or a part of one, by design
        self.breaks: list[str] = []  # reasons of graph breaks and of functions without a graph
        self.backend = DynamoBackend(
            precision,
            strict=whole,
            record=record,
            graph_factory=graph_factory,
            fallback_advice=fallback_advice,
            verify=verify,
            providers=providers,
            disabled_passes=disabled_passes,
            memory_limit=memory_limit,
        )
        # Not torch.compile(): Steep would have to change its settings around each call.
        context = optimize(self.backend, nopython=whole, isolate_recompiles=True)
        # Dynamo keeps backends alive for torch._dynamo.reset(), which this backend does not need.
        cached_backends.pop(id(self.backend), None)
        convert_by_dynamo = context.callback
        self._guards: list[weakref.ref[Any]] = []
        weakref.finalize(self, _let_go, self._guards).atexit = False
        me = weakref.ref(self)  # no reference cycle: a deleted module is freed at once

        def capture_frame(*frame: Any) -> ConvertFrameReturn:
            with convert_frame.compile_lock:  # replacements in PyTorch affect all threads
                return me()._capture_frame(convert_by_dynamo, *frame)  # type: ignore[union-attr]

        note_backend(capture_frame, convert_by_dynamo)
        context.callback = capture_frame
        # Its forward, since global module hooks must run for the user's modules alone.
        self._call = context(module).forward
        # code objects at which Dynamo failed; PyTorch runs them
        self._failed_code: set[Any] = set()
        self._first = first  # None until the first capture
        self._recaptures = Recaptures(fallback_advice if whole else "")
        self._varying_extents: set[tuple[int, int]] = (
            set()
        )  # extents that changed: (argument, dimension)

    @property
    def ran_in_engine(self) -> bool:
        """Whether any graph of the module has run in the engine."""
        return self.backend.ran_in_engine

    @property
    def graphs(self) -> Iterable[RunnableGraph]:
        """The compiled graphs, in the order in which they were converted."""
        return self.backend.graphs

    def _capture_frame(
        self, convert_by_dynamo: Callable[..., Any], *frame: Any
    ) -> ConvertFrameReturn:
        """Capture a frame by Dynamo's callback, under Steep's settings and replacements."""
        refuse_to_capture()
        if self._is_left(frame[0], frame[1]):
            self.left_on_purpose = True
            return left_this_time()
        before = len(graph_break_reasons)
        settings = config.patch(**values_of(CAPTURE), ignore_logging_functions=_log_lines())
        chatter = silence_loggers("torch._dynamo", "torch._subclasses.fake_tensor")
        # Left in the reverse order: PyTorch gets its functions back, then transforms that a failure
        # left open are closed, and at last signals' handlers run.
        with DelayedSignals() as signals, settings, chatter, contextlib.ExitStack() as stack:
            stack.enter_context(without_transforms())
            # where several replace the same function, the last one is called first
            for change in sorted(self._changes(), key=lambda change: change.order):
                stack.enter_context(change)
            errors = stack.enter_context(skipped_function_errors())
            conversion = self._convert(convert_by_dynamo, signals, frame)
        self._note_breaks(frame[0].f_code, conversion, graph_break_reasons[before:], errors)
        if conversion.guarded_code is not None:
            self._guards.append(weakref.ref(conversion.guarded_code.guard_manager))
        return conversion

    def _is_left(self, frame: FrameType, entry: CacheEntry | None) -> bool:
        """Return whether PyTorch runs a call by design; otherwise prepare its capture.

        Extents come first: those of a call that is left count for later captures.
        """
        if drops_padding(frame):
            self._say_breaks(["nn.TransformerEncoder drops padding: it makes a nested tensor"])
            return True
        self._let_extents_vary()
        too_many = self._note_why(frame, entry)
        if too_many and too_many not in self.breaks:
            self.breaks.append(too_many)
        return bool(too_many)

    def _changes(self) -> list[Change[Any]]:
        """Return the replacements in PyTorch during a capture."""
        return [
            *(keep_recurrent_layers(), whole_backwards(), known_to_tracers(), causal_masks()),
            *(
                huber_losses(),
                buckets(),
                graph_breaks(self._whole),
                means_over_batches(self._module),
            ),
            *(extra_guards(), extra_tracing(self._whole), layer_frames(), trace_autograd_grad()),
            *(interruptible_calls(), layers_as_in_eager(), arrays(), raise_branches()),
            *(absence_guards(), cached_functions(self._whole), changed_tensors()),
            *(process_state(), reentrant_checkpoints(), exact_numbers()),
            *(class_guards(), answer_guards(), refused_writes()),
            *([branches()] if self._whole else []),
        ]

    def _convert(
        self, convert_by_dynamo: Callable[..., Any], signals: DelayedSignals, frame: tuple[Any, ...]
    ) -> ConvertFrameReturn:
        """Let Dynamo convert a frame; leave it to PyTorch if Dynamo fails at it."""
        try:
            with signals.tracing():
                conversion: ConvertFrameReturn = convert_by_dynamo(*frame)
                return conversion
        except (Error, *_SAID):
            raise
        except Exception as e:
            why = summary_of(e) + place(getattr(e, "real_stack", None))
            if self._whole or isinstance(e, ResumePrologueTracingError):
                raise self._not_one_graph(why) from e
            self.backend.local.failures.append((frame[0].f_code, why))
            return left_to_pytorch(e, for_good=frame[0].f_code in self._failed_code)

    def _note_why(self, frame: FrameType, entry: CacheEntry | None) -> str:
        """Record for the report which function is captured, and which guard failed before.

        Returns why there must be no further graph, or "".
        """
        local = self.backend.local
        local.training = self._module.training
        local.place = f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}"
        local.because = ""
        if entry is None:
            return ""
        reason = why_again(frame, entry)
        local.because = reason.condition
        write_log("recompiles", f"{local.place} is captured again: {reason}")
        return self._recaptures.add(frame, reason)

    def _note_breaks(
        self,
        code: CodeType,
        conversion: ConvertFrameReturn,
        reasons: list[Any],
        errors: list[Exception],
    ) -> None:
        """Record, and log once, the code that PyTorch runs outside of graphs.

        ``errors`` are those for which PyTorch runs a whole function.
        """
        # Two buckets of gradients have two graphs, but there is no code between them.
        reasons = [r for r in reasons if not r.reason.startswith("DDPOptimizer")]
        causes = [(r.reason, r.user_stack) for r in reasons]
        causes += [(str(e), getattr(e, "real_stack", None)) for e in errors]
        # a break inside of PyTorch's code is reported at the user's line that called it
        here = f" ({code.co_filename}:{code.co_firstlineno})" if is_users(code.co_filename) else ""
        breaks = [
            graph_break_text(why, stack, here) for why, stack in causes if here or place(stack)
        ]
        self._say_breaks(breaks)
        is_skipped = (
            conversion.guarded_code is None
            and conversion.skip_reason
            and not trace_rules.check(code)
        )
        # code without an operation on tensors is no reason, unless it follows one
        computes_nothing = has_no_operation(conversion.skip_reason or "") and not self.breaks
        if is_skipped and conversion.apply_to_code and here and not computes_nothing:
            text = skipped_function_text(
                code, conversion.skip_reason, self.breaks if code in self._failed_code else breaks
            )
            self.breaks += [text] if text not in self.breaks else []

    def _say_breaks(self, breaks: list[str]) -> None:
        for text in dict.fromkeys(breaks):
            write_log("breaks", f"PyTorch runs what lies between two graphs: {text}")
            if text not in self.breaks:
                log.warning("PyTorch runs code between two graphs: %s", text)
                self.breaks.append(text)

    def _let_extents_vary(self) -> None:
        """Make extents symbolic once a call's arguments have other extents than the first call's.

        By default Dynamo makes only the extents symbolic that it saw change: it would make one
        graph for another length, and one more for another number of rows. In images and volumes,
        only these extents become symbolic: rows, extents that have changed, and extents that other
        arguments have too (the lengths of a mask). For windows of symbolic height and width,
        symbolic reasoning takes minutes.
        """
        tensors = [t for t in self.backend.local.arguments if isinstance(t, torch.Tensor)]
        sizes = [t.shape for t in tensors]
        if self._first is None:
            self._first = sizes
        if sizes == self._first:
            return
        lengths = {n for size in sizes if len(size) < IMAGE for n in size}
        for i, (tensor, size) in enumerate(zip(tensors, sizes, strict=True)):
            first = self._first[i] if i < len(self._first) else ()
            if len(first) == len(size):
                self._varying_extents |= {(i, d) for d, n in enumerate(size) if n != first[d]}
            varying = [
                d
                for d, n in enumerate(size)
                if len(size) < IMAGE or d == 0 or n in lengths or (i, d) in self._varying_extents
            ]
            maybe_mark_dynamic(tensor, varying)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return the module's result.

        Raises:
            ModelError: a graph cannot run in the engine, or there would be too many.
        """
        local = self.backend.local
        local.arguments, local.failures = tree_leaves((args, kwargs)), []
        try:
            result = self._call(*args, **kwargs)
            # Not reached if PyTorch raises too: then the call was wrong, not the tracer.
            self._failed_code.update(code for code, _ in local.failures)
            self._say_breaks([f"PyTorch's tracer fails: {why}" for _, why in local.failures])
        except BackendCompilerFailed as e:
            if isinstance(e.inner_exception, Error):
                raise e.inner_exception from e
            raise
        except (Unsupported, UserError) as e:
            raise self._not_one_graph(graph_break_text(str(e), e.real_stack)) from e
        finally:
            local.arguments = ()
        return result

    def _not_one_graph(self, why: str) -> ModelError:
        return ModelError(
            "The module does not become one graph.",
            received=why,
            remedy=f"change the code, or {self.backend.fallback_advice}",
        )


def _let_go(guards: list[weakref.ref[Any]]) -> None:
    """Make Dynamo drop the graphs of a deleted module; it caches them by the functions' code."""
    for manager in (ref() for ref in guards):
        entry, state = getattr(manager, "cache_entry", None), getattr(manager, "extra_state", None)
        if entry is not None and state is not None:
            state.invalidate(entry, DeletedGuardManagerWrapper("the module is gone"))


def _log_lines() -> set[Callable[..., Any]]:
    """Return the logger methods that write a line: they cause no graph break and write nothing."""
    return {f for n, f in vars(logging.Logger).items() if n.startswith(("debug", "info", "warn"))}

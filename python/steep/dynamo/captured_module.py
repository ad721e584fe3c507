"""A module whose calls Dynamo captures, with settings and guards that miss nothing."""

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
from steep.dynamo.patches.causal_masks import causal_masks
from steep.dynamo.patches.cumulative_batch_norm import means_over_batches
from steep.dynamo.patches.ddp_buckets import buckets
from steep.dynamo.patches.extra_guards import extra_guards
from steep.dynamo.patches.extra_tracing import extra_tracing
from steep.dynamo.patches.graph_breaks import cuts, left_this_time, left_to_pytorch
from steep.dynamo.patches.interrupts import interruptible_calls
from steep.dynamo.patches.layer_frames import layers_too
from steep.dynamo.patches.numpy_arrays import arrays
from steep.dynamo.patches.raise_branches import raise_branches
from steep.dynamo.patches.transformer_layers import drops_padding, layers_as_in_eager
from steep.dynamo.patches.value_branches import branches
from steep.dynamo.recompiles import Recaptures, why_again
from steep.dynamo.report import GraphReport
from steep.errors import Error, ModelError
from steep.graph.compiled_graph import CompiledGraph
from steep.graph.lowered import Lowered
from steep.inside import tell
from steep.lowering.autograd_grad import slopes
from steep.lowering.ops.autograd_function import whole_backwards
from steep.lowering.ops.ctc import known_to_tracers
from steep.lowering.ops.recurrent import kept_whole
from steep.lowering.reasons import cut, is_users, noted, place, said, whole
from steep.patching.dynamo_settings import CAPTURE, values_of
from steep.patching.restore import transforms_left, unlogged
from steep.patching.signals import Held
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
"""Dimensions of a batch of images."""

# What Dynamo raises that says itself what is to be done.
_SAID = (BackendCompilerFailed, Unsupported, UserError)


class CapturedModule:
    """Runs a module as before, with its graphs in the engine.

    Args:
        module: what is captured when it is called; no ORTModule (``ort_module.innermost``).
        precision: as for ``DynamoBackend``.
        record: as for ``DynamoBackend``.
        whole: raise ModelError where the module does not become one graph in the engine; otherwise
            PyTorch runs what lies between graphs, and graphs that the engine cannot run.
        make, otherwise: as for ``DynamoBackend``.
        first: the shapes of the arguments of an earlier call, of which there is a graph already.
        verify, providers, disabled_passes, memory_limit: as for ``DynamoBackend``.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        precision: Callable[[], str],
        record: Callable[[GraphReport], None],
        *,
        whole: bool,
        make: Callable[[Lowered], RunnableGraph] = CompiledGraph,
        otherwise: str = 'fallback="parts"',
        first: Sequence[torch.Size] | None = None,
        verify: bool | None = None,
        providers: Sequence[ProviderChoice] = (),
        disabled_passes: Sequence[str] = (),
        memory_limit: str = "",
    ) -> None:
        self._module = module
        self._whole = whole
        self.has_run = False  # anything of it, in the engine
        self.breaks: list[str] = []  # why there are several graphs, or none of a function
        self.backend = DynamoBackend(
            precision,
            strict=whole,
            record=record,
            make=make,
            otherwise=otherwise,
            verify=verify,
            providers=providers,
            disabled_passes=disabled_passes,
            memory_limit=memory_limit,
        )
        # Not torch.compile(): its settings would have to be changed around each call.
        context = optimize(self.backend, nopython=whole, isolate_recompiles=True)
        # It would be kept for torch._dynamo.reset(), which finds nothing to reset in it.
        cached_backends.pop(id(self.backend), None)
        make = context.callback
        self._guards: list[weakref.ref[Any]] = []
        weakref.finalize(self, _let_go, self._guards).atexit = False
        me = weakref.ref(self)  # nothing goes round in a circle: a deleted module is freed at once

        def configured(*frame: Any) -> ConvertFrameReturn:
            with convert_frame.compile_lock:  # what is replaced is replaced for all threads
                return me()._make(make, *frame)  # type: ignore[union-attr]

        note_backend(configured, make)
        context.callback = configured
        # Its forward: hooks of all modules are for those that the user has.
        self._call = context(module).forward
        self._left: set[Any] = set()  # code that PyTorch runs, since its tracer fails
        self._first = first  # None until a graph was made
        self._recaptures = Recaptures(otherwise if whole else "")
        self._changed: set[tuple[int, int]] = set()  # extents, by argument and dimension

    @property
    def graphs(self) -> Iterable[RunnableGraph]:
        """What runs its graphs, in the order in which they were made."""
        return self.backend.graphs

    def _make(self, make: Callable[..., Any], *frame: Any) -> ConvertFrameReturn:
        """Have PyTorch's ``make`` capture a frame, under the settings that this asks for."""
        refuse_to_capture()
        if drops_padding(frame[0]):
            self._say_breaks(["nn.TransformerEncoder drops padding: it makes a nested tensor"])
            self.backend.local.ran = True  # what was to
            return left_this_time()
        self._let_extents_vary()
        if too_many := self._note_why(*frame[:2]):
            self.breaks += [too_many] if too_many not in self.breaks else []
            self.backend.local.ran = True  # what was to
            return left_this_time()
        before = len(graph_break_reasons)
        settings = config.patch(**values_of(CAPTURE), ignore_logging_functions=_log_lines())
        chatter = unlogged("torch._dynamo", "torch._subclasses.fake_tensor")
        changes = [kept_whole(), whole_backwards(), known_to_tracers(), causal_masks(), buckets()]
        changes += [cuts(self._whole), means_over_batches(self._module), extra_guards()]
        changes += [extra_tracing(self._whole), layers_too(), slopes(), interruptible_calls()]
        changes += [layers_as_in_eager(), arrays(), raise_branches()]
        changes += [branches()] if self._whole else []
        with Held() as held, settings, chatter, contextlib.ExitStack() as stack:
            stack.enter_context(transforms_left())
            for change in sorted(changes, key=lambda change: change.order):
                stack.enter_context(change)
            left = stack.enter_context(noted())
            try:
                with held.tracing():
                    made = make(*frame)
            except (Error, *_SAID):
                raise
            except Exception as e:
                why = said(e) + place(getattr(e, "real_stack", None))
                if self._whole or isinstance(e, ResumePrologueTracingError):
                    raise self._not_one_graph(why) from e
                made = left_to_pytorch(e, for_good=frame[0].f_code in self._left)
                self.backend.local.failed.append((frame[0].f_code, why))
        self._note_breaks(frame[0].f_code, made, graph_break_reasons[before:], left)
        if made.guarded_code is not None:
            self._guards.append(weakref.ref(made.guarded_code.guard_manager))
        return made

    def _note_why(self, frame: FrameType, entry: CacheEntry | None) -> str:
        """Note, for the report, of which function a graph is made, and why again.

        Returns why there is to be none, or "".
        """
        local = self.backend.local
        local.training = self._module.training
        local.place = f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}"
        local.because = ""
        if entry is None:
            return ""
        reason = why_again(frame, entry)
        local.because = reason.condition
        tell("recompiles", f"{local.place} is captured again: not {reason}")
        return self._recaptures.add(frame, reason)

    def _note_breaks(
        self, code: CodeType, made: ConvertFrameReturn, reasons: list[Any], left: list[Exception]
    ) -> None:
        """Record, and log once, what PyTorch runs outside of graphs.

        ``left`` are the errors for which the function is left whole.
        """
        # Nothing lies between the graphs of two buckets of gradients.
        reasons = [r for r in reasons if not r.reason.startswith("DDPOptimizer")]
        found = [(r.reason, r.user_stack) for r in reasons]
        found += [(str(e), getattr(e, "real_stack", None)) for e in left]
        # what PyTorch calls for a user's line has that line's reason
        here = f" ({code.co_filename}:{code.co_firstlineno})" if is_users(code.co_filename) else ""
        breaks = [cut(why, stack, here) for why, stack in found if here or place(stack)]
        self._say_breaks(breaks)
        skipped = made.guarded_code is None and made.skip_reason and not trace_rules.check(code)
        if skipped and made.apply_to_code and here:
            text = whole(code, made.skip_reason, self.breaks if code in self._left else breaks)
            self.breaks += [text] if text not in self.breaks else []

    def _say_breaks(self, breaks: list[str]) -> None:
        for text in dict.fromkeys(breaks):
            tell("breaks", f"PyTorch runs what lies between two graphs: {text}")
            if text not in self.breaks:
                log.warning("PyTorch runs code between two graphs: %s", text)
                self.breaks.append(text)

    def _let_extents_vary(self) -> None:
        """Ask for a graph of any extents once those of the arguments have changed.

        Otherwise Dynamo makes only those extents symbolic that it saw change: it would make one
        graph for another length, and one more for another number of rows. In images and volumes,
        only these extents become symbolic: rows, extents that have changed, and extents that other
        arguments have too (the lengths of a mask). To reason about windows of any height and width
        takes minutes.
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
                self._changed |= {(i, d) for d, n in enumerate(size) if n != first[d]}
            varying = [
                d
                for d, n in enumerate(size)
                if len(size) < IMAGE or d == 0 or n in lengths or (i, d) in self._changed
            ]
            maybe_mark_dynamic(tensor, varying)

    def __call__(self, *args: object, **kwargs: object) -> tuple[Any, bool]:
        """Return the module's result, and whether anything ran in the engine.

        Raises:
            ModelError: a graph cannot run in the engine, or there would be too many.
        """
        local = self.backend.local
        local.ran = False
        local.arguments, local.failed = tree_leaves((args, kwargs)), []
        try:
            result = self._call(*args, **kwargs)
            # Where PyTorch raises as well, it was the error of this call.
            self._left.update(code for code, _ in local.failed)
            self._say_breaks([f"PyTorch's tracer fails: {why}" for _, why in local.failed])
        except BackendCompilerFailed as e:
            if isinstance(e.inner_exception, Error):
                raise e.inner_exception from e
            raise
        except (Unsupported, UserError) as e:
            raise self._not_one_graph(cut(str(e), e.real_stack)) from e
        finally:
            local.arguments = ()
            self.has_run |= local.ran
        return result, local.ran

    def _not_one_graph(self, why: str) -> ModelError:
        return ModelError(
            "The module does not become one graph.",
            received=why,
            remedy="change the code, or let PyTorch run what lies between: "
            + self.backend.otherwise,
        )


def _let_go(guards: list[weakref.ref[Any]]) -> None:
    """Make PyTorch drop graphs that nobody calls any more; it keeps them by functions' code."""
    for manager in (ref() for ref in guards):
        entry, state = getattr(manager, "cache_entry", None), getattr(manager, "extra_state", None)
        if entry is not None and state is not None:
            state.invalidate(entry, DeletedGuardManagerWrapper("the module is gone"))


def _log_lines() -> set[Callable[..., Any]]:
    """Return what writes a line to a log: it does not cut a graph, and is not written from one."""
    return {f for n, f in vars(logging.Logger).items() if n.startswith(("debug", "info", "warn"))}

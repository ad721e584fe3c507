"""Capture by PyTorch's own tracer: its graphs run here, each under the conditions that it has.

Dynamo follows a module's Python code, cuts it where that code decides on values, and guards every
graph by what it read: extents, attributes, globals, hooks, modes, which tensors are one. piece.py
brings a graph into the engine; PyTorch runs what lies between graphs, and graphs that cannot be
brought in.

This leans on parts of PyTorch that are not public: ``CAPTURED`` names the version it is known for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import config
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, Unsupported
from torch.utils._pytree import tree_leaves

from steep.call import autocast_precision
from steep.errors import Error, ModelError
from steep.lowering import CannotLower
from steep.parts import bring_in_parts
from steep.piece import NothingToRun, bring_in

log = logging.getLogger("steep")

CAPTURED = "2.13"

CONFIG: dict[str, Any] = {
    # what fails open by default
    "skip_nnmodule_hook_guards": False,
    "skip_no_tensor_aliasing_guards_on_parameters": False,
    "fail_on_recompile_limit_hit": True,
    "recompile_limit": 64,
    # a number that a module counts up is an input, not a graph for each
    "allow_unspec_int_on_nn_module": True,
    "allow_rnn": True,
    "capture_dynamic_output_shape_ops": True,
}
"""Of ``torch._dynamo.config``, while ``Captured`` makes graphs."""

_lowering = threading.RLock()  # what surrounds an export is replaced for the whole process


class Capture:
    """A backend of ``torch.compile``: runs each graph in the engine, else in PyTorch.

    Args:
        precision: "fp32", "bf16" or "fp16"; by default what autocast says where a graph is made.
        strict: raise ModelError for a graph that the engine cannot run.
        record: is told of each graph the seconds to bring it into the engine, or to find that it
            cannot be, and why PyTorch runs it: "" when the engine does.
    """

    def __init__(
        self,
        precision: Callable[[], str],
        *,
        strict: bool = False,
        record: Callable[[float, str], None] = lambda seconds, refused: None,
    ) -> None:
        self.precision = precision
        self.strict = strict
        self.record = record
        self.local = threading.local()

    def __call__(
        self, graph_module: torch.fx.GraphModule, examples: Sequence[Any]
    ) -> Callable[..., Any]:
        """Return what runs the graph: a function of its placeholders that gives its outputs."""
        if not torch.__version__.startswith(CAPTURED):
            raise ModelError(
                "This version of PyTorch is not one whose captured graphs are known.",
                expected=CAPTURED,
                received=torch.__version__,
                remedy='use exporter="torch.export"',
            )
        start = time.perf_counter()
        refused: list[CannotLower] = []
        precision = self.precision()
        try:
            with _lowering:
                try:
                    piece: Callable[..., Any] = bring_in(graph_module, examples, precision)
                except CannotLower as e:
                    refused = [e]
                    if self.strict:
                        raise
                    piece, refused = bring_in_parts(graph_module, examples, precision, e)
        except NothingToRun:
            return _as_it_is(graph_module)
        except CannotLower as e:
            self.record(time.perf_counter() - start, str(e))
            if self.strict:
                raise ModelError(
                    "A part of the module cannot run in the engine.",
                    received=str(e),
                    remedy='change the code named above, or let PyTorch run it: fallback="parts"',
                ) from e
            log.warning("PyTorch runs a graph that cannot be brought in: %s", e)
            return _as_it_is(graph_module)
        for why in refused:
            log.warning("PyTorch runs one operation between two graphs: %s", why)
        self.record(time.perf_counter() - start, "")

        def run(*arguments: Any) -> Any:
            self.local.ran = True
            return piece(*arguments)

        return run


class Captured:
    """A module, called as ever, whose graphs run in the engine.

    Args:
        module: what is captured when it is called.
        precision: as for ``Capture``.
        record: as for ``Capture``.
        whole: raise ModelError where the module does not become one graph in the engine; otherwise
            PyTorch runs what lies between graphs, and graphs that the engine cannot run.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        precision: Callable[[], str],
        record: Callable[[float, str], None],
        *,
        whole: bool,
    ) -> None:
        self.capture = Capture(precision, strict=whole, record=record)
        # Not torch.compile(): its settings would have to be changed around each call.
        context = torch._dynamo.optimize(self.capture, nopython=whole, isolate_recompiles=True)
        make = context.callback

        def configured(*frame: Any) -> Any:
            self._let_extents_vary()
            with config.patch(**CONFIG, ignore_logging_functions=_log_lines()):
                return make(*frame)

        configured._torchdynamo_orig_backend = make  # type: ignore[attr-defined]
        context.callback = configured
        self._call = context(module)
        self._sizes: list[torch.Size] | None = None  # when the first graph was made

    def _let_extents_vary(self) -> None:
        """Ask for a graph of any extents once those of the arguments have changed.

        Otherwise Dynamo lets vary only what it saw vary: a graph for another length, and one more
        for another number of rows.
        """
        tensors = [t for t in self.capture.local.arguments if isinstance(t, torch.Tensor)]
        sizes = [t.shape for t in tensors]
        if self._sizes is None:
            self._sizes = sizes
        if sizes != self._sizes:
            for tensor in tensors:
                torch._dynamo.maybe_mark_dynamic(tensor, [*range(tensor.ndim)])

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, bool]:
        """Return the module's result, and whether anything ran in the engine.

        Raises:
            ModelError: a graph cannot run in the engine, or there would be too many.
        """
        local = self.capture.local
        local.ran = False
        local.arguments = tree_leaves((args, kwargs))
        try:
            result = self._call(*args, **kwargs)
        except BackendCompilerFailed as e:
            if isinstance(e.inner_exception, Error):
                raise e.inner_exception from e
            raise
        except FailOnRecompileLimitHit as e:
            raise ModelError(
                "The module became too many graphs.",
                expected=f"at most {CONFIG['recompile_limit']}",
                received=_first_line(e),
                remedy="pass as a tensor what changes from call to call",
            ) from e
        except Unsupported as e:
            raise ModelError(
                "The module does not become one graph.",
                received=_first_line(e),
                remedy='change the code, or let PyTorch run what lies between: fallback="parts"',
            ) from e
        finally:
            local.arguments = []
        return result, local.ran


def backend(graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """Run a graph of ``torch.compile(module, backend="steep")``; PyTorch runs what cannot be.

    Guards are those that ``torch.compile`` is configured to make: by default it does not notice
    hooks that are added later.
    """
    return _default(graph_module, examples)


_default = Capture(autocast_precision)


def _log_lines() -> set[Callable[..., Any]]:
    """Return what writes a line to a log: it does not cut a graph, and is not written from one."""
    return {f for n, f in vars(logging.Logger).items() if n.startswith(("debug", "info", "warn"))}


def _as_it_is(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    forward: Callable[..., Any] = graph_module.forward
    return forward


def _first_line(e: BaseException) -> str:
    text = str(e).strip()
    return f"{type(e).__name__}: {text.splitlines()[0] if text else ''}"[:300]

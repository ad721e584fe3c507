"""``verify=True``: PyTorch runs the first step of a captured graph too, and both are compared.

PyTorch runs the captured graph itself on copies of its arguments, with the random numbers of the
engine's run. Results, arguments that forward wrote, and gradients must agree.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch
import torch.fx

from steep.errors import VerificationError
from steep.graph.captured_graph import copy_graph
from steep.graph.compiled_graph import CompiledGraph, compile_with
from steep.graph.lowered import LoweredGraph
from steep.lowering.aliasing import all_written_by
from steep.lowering.capture_context import CaptureContext
from steep.torch_internals.tensors import version_of
from steep.verify.compare import (
    ROUNDINGS,
    Comparison,
    Outcome,
    run_in_torch,
)
from steep.verify.copies import copies_of, or_zero, wide
from steep.verify.difference import LEAST_SCALE, Difference, largest_of
from steep.verify.locate import find
from steep.verify.replay_random import Masks, Unmatched

log = logging.getLogger("steep")

T = TypeVar("T")


def compile_verified(
    graph_module: torch.fx.GraphModule, examples: Sequence[Any], context: CaptureContext
) -> VerifiedGraph:
    """Return a graph as ``compile_captured`` does, whose first step is compared."""
    reference = copy_graph(graph_module)
    return compile_with(
        graph_module, examples, context, lambda lowered: VerifiedGraph(lowered, reference)
    )


class VerifiedGraph(CompiledGraph):
    """A compiled graph whose steps are compared with PyTorch's until one of them agrees."""

    def __init__(self, lowered: LoweredGraph, reference: torch.fx.GraphModule) -> None:
        super().__init__(lowered)
        self.outcome = Outcome()
        self.reference: torch.fx.GraphModule | None = reference  # None after the comparison
        self._lock = threading.Lock()  # held during a comparison, and kept after the last one

    def __call__(self, *arguments: object) -> object:
        """Run the graph; compare the step if none was compared yet.

        Raises:
            VerificationError: results differ. Arguments have been written by then.
        """
        reference = self.reference
        if reference is None or not self._lock.acquire(blocking=False):
            return super().__call__(*arguments)
        try:
            step = Step(self, reference, arguments)
            inputs = self.prepare_inputs(arguments)
            engine_results = self.run_engine(inputs)
            results = self.write_back_and_return(arguments, engine_results)
            is_compared = step.compare_forward(inputs, results, engine_results)
        except BaseException:  # also of other code: then nothing was compared
            self._lock.release()
            raise
        if not is_compared:
            self.reference = None
        return results

    def end_comparison(self, again: bool) -> None:
        """End a comparison; with ``again``, another step will be compared."""
        if again:
            self._lock.release()
        else:
            self.reference = None


class Step(Comparison):
    """One step of a compiled graph, which PyTorch runs too."""

    def __init__(
        self, compiled: VerifiedGraph, reference: torch.fx.GraphModule, arguments: Sequence[Any]
    ) -> None:
        self.expected: list[Any] = []  # PyTorch's values, kept until backward
        super().__init__(compiled, reference, arguments)
        self.verified = compiled
        self.arguments = arguments
        self.versions = [_writes_to(a) for a in arguments]
        writes = bool(compiled.lowered.write_targets) or any(
            map(all_written_by, reference.graph.nodes)
        )
        self.leaves = copies_of(self.pristine) if writes else self.pristine
        self.inputs = [_not_a_leaf(t) if writes else t for t in self.leaves]

    def compare_forward(
        self, inputs: list[torch.Tensor], results: object, engine_results: list[torch.Tensor]
    ) -> bool:
        """Compare results; return whether a hook will compare gradients too."""
        compiled = self.compiled
        versions = [_writes_to(t) for t in self.inputs]
        names = [value.name for value in compiled.lowered.values]
        try:
            with torch.random.fork_rng(devices=[]):
                self.masks = Masks(compiled, inputs)
                values, outputs = run_in_torch(self.reference, self.inputs, {*names}, self.masks)
            if missing := {*names} - {*values}:
                raise Unmatched(f"PyTorch has no values of the name {min(missing)}")
        except Unmatched as e:
            log.warning("not verified: %s", e)
            return False
        except Exception as e:
            raise VerificationError(
                "PyTorch does not run what the engine ran.",
                expected=f"{type(e).__name__}: {e}"[:300],
                received="a result",
                remedy="report it, with the module",
            ) from e
        targets = [
            i
            for i, argument in enumerate(self.arguments)
            if _writes_to(argument) != self.versions[i] or _writes_to(self.inputs[i]) != versions[i]
        ]
        received = [*_as_list(results), *(self.arguments[i] for i in targets)]
        expected = [*_as_list(outputs), *(self.inputs[i] for i in targets)]

        def exactly() -> list[Any]:
            copies = [wide(t) for t in self.pristine]
            _, outputs = run_in_torch(self.reference, copies, set(), self.masks)
            return [*_as_list(outputs), *(copies[i] for i in targets)]

        self._judge(received, expected, 0.0, exactly, None)
        self.arguments = ()
        if not any(m.requires_grad for m in engine_results):
            return False
        new_values = [self.inputs[i] for i in compiled.lowered.write_targets]
        self.expected = new_values + [values[name] for name in names]
        node = next(m.grad_fn for m in engine_results if m.grad_fn is not None)
        handle = node.register_hook(self._compare_backward)
        self.forget = handle.remove
        return True

    def _compare_backward(
        self, received: Sequence[torch.Tensor | None], incoming: Sequence[torch.Tensor | None]
    ) -> None:
        self.forget()
        expected, self.expected = self.expected, []
        if not expected:  # a second backward, of another thread
            return
        compiled = self.compiled
        positions = [compiled.lowered.positions[i] for i in compiled.engine_graph.wanted_inputs]
        leaves = [self.leaves[i] for i in positions]
        try:
            gradients = _gradients(expected, incoming, leaves)
        except Unmatched as e:
            log.warning("not verified: %s", e)
            self.verified.outcome.largest = None
            self.verified.end_comparison(again=False)
            return
        del expected

        def exactly() -> list[Any]:
            wide = copies_of([wide(t) for t in self.pristine])
            copies = [_not_a_leaf(t) for t in wide]
            names = [value.name for value in compiled.lowered.values]
            values, _ = run_in_torch(self.reference, copies, {*names}, self.masks)
            outputs = [copies[i] for i in compiled.lowered.write_targets]
            outputs += [values[name] for name in names]
            return _gradients(outputs, incoming, [wide[i] for i in positions])

        scale = LEAST_SCALE * max((largest_of(g) for g in gradients), default=0.0)
        mine = [or_zero(g, leaf) for g, leaf in zip(received, leaves, strict=True)]
        self._judge(
            mine, gradients, scale, exactly, incoming[len(compiled.lowered.write_targets) :]
        )
        self.verified.end_comparison(again=False)

    def __del__(self) -> None:
        """Let another step be compared if this step's backward never ran."""
        if self.expected:
            self.verified.end_comparison(again=True)

    def _judge(
        self,
        received: list[Any],
        expected: list[Any],
        least: float,
        exactly: Callable[[], list[Any]],
        incoming: Sequence[Any] | None,
    ) -> None:
        """Record the largest difference; raise VerificationError if it exceeds rounding errors."""
        pairs = zip(received, expected, strict=True)
        differences = [self.difference(r, e, least) or Difference(0.0, "", "") for r, e in pairs]
        worst = max(differences, key=lambda d: d.relative, default=None)
        if worst is None:
            return
        self.verified.outcome.note(worst.relative)
        if worst.relative > self.tolerance:
            rounding = self._rounding(expected, exactly, least)
            limits = [max(self.tolerance, ROUNDINGS * r) for r in rounding]
            differences = [
                d for d, most in zip(differences, limits, strict=True) if d.relative > most
            ]
            if differences:
                self._raise(max(differences, key=lambda d: d.relative), incoming)

    def _rounding(
        self, expected: list[Any], exactly: Callable[[], list[Any]], least: float
    ) -> list[float]:
        """Return the relative differences of PyTorch's values to PyTorch's values in float64."""
        try:
            with (
                torch.random.fork_rng(devices=[]),
                torch.set_grad_enabled(self.grad_mode),
                torch.autocast("cpu", enabled=False),
            ):
                exact = exactly()
        except Exception as e:  # noqa: BLE001 - any operator may raise, such as for mixed dtypes
            log.info("PyTorch does not compute the graph in float64: %s", e)
            return [0.0] * len(expected)
        rounding = []
        for value, precise in zip(expected, exact, strict=True):
            gap = None
            if isinstance(value, torch.Tensor):
                gap = self.difference(precise.detach().to(value.dtype), value.detach(), least)
            rounding.append(gap.relative if gap is not None and gap.relative < math.inf else 0.0)
        return rounding

    def _raise(self, worst: Difference, incoming: Sequence[Any] | None) -> NoReturn:
        if incoming is not None:
            self.verified.end_comparison(again=True)
        place = find(self, incoming)
        what = "a gradient" if incoming is not None else "a value"
        raise VerificationError(
            f"The engine computes {what} that differs from PyTorch's by {worst.relative:.2g} of "
            f"its largest entry, where {self.tolerance:.0e} is allowed. {place.sentence}",
            node=place.module,
            op=place.operator,
            expected=(place.difference or worst).expected,
            received=(place.difference or worst).received,
            remedy="report it; until then run this module in PyTorch",
        )


def _gradients(
    values: Sequence[Any], incoming: Sequence[Any], leaves: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the gradients of ``leaves`` for the gradients ``incoming`` of ``values``.

    Raises Unmatched: a saved value was changed in place.
    """
    pairs = [
        (v, g.detach().to(v.dtype))
        for v, g in zip(values, incoming, strict=True)
        if g is not None and isinstance(v, torch.Tensor) and v.requires_grad
    ]
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    of, seeds = zip(*pairs, strict=True)
    try:
        slopes = torch.autograd.grad(of, leaves, seeds, allow_unused=True)
    except RuntimeError as e:
        if "modified by an inplace operation" in str(e):
            what = "PyTorch refuses this backward: a saved value was changed in place"
            raise Unmatched(what) from e
        raise
    return [or_zero(g, leaf) for g, leaf in zip(slopes, leaves, strict=True)]


def _not_a_leaf(value: T) -> T:
    """Return a tensor that may be written in place although it needs a gradient."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    copy: T = value.clone()
    return copy


def _writes_to(value: object) -> float:
    """Return a tensor's version; NaN (never equal) for inference tensors, which have none."""
    if not isinstance(value, torch.Tensor):
        return 0
    return math.nan if value.is_inference() else version_of(value)


def _as_list(values: object) -> list[Any]:
    return list(values) if isinstance(values, (tuple, list)) else [values]

"""The first steps of a graph beside PyTorch's own: results, writes to arguments, and gradients."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook

from steep.errors import VerificationError
from steep.verify.difference import LEAST_SCALE, TOLERANCES, difference, largest_of

_UNSURE = 0.05
"""So far may eager mode be from float64, relative to the largest entry, to say anything."""

_TIMES = 10
"""So many times eager mode's distance from float64 may ours be."""


class VerifiedGraph:
    """Runs a graph of ``torch.compile``; its first calls are compared with PyTorch's eager mode.

    What is compared is the graph as ``torch.compile`` hands it over. The functional graph is none
    to compare with: a decomposition of PyTorch's may have made it wrong.

    Where a value differs by more than its types allow, the graph also runs in float64. A graph that
    multiplies rounding errors, such as batch normalisations of few rows, makes eager mode inexact
    too: a value that is at most 10 times as far from float64 as eager mode's is right.

    Calls from several threads are safe; those that are compared wait for each other.

    Args:
        graph_module: called with the arguments, it runs in eager mode.
        run: what is compared with it, called with the same arguments.
        steps: how many first calls are compared, each with its backward.
        dtypes: of all values that ``run`` computes; it may grow until backward runs.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        run: Callable[..., Any],
        steps: int,
        dtypes: set[torch.dtype],
    ) -> None:
        self._graph_module, self._run = graph_module, run
        self._left, self._dtypes = steps, dtypes
        self._lock = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        """Return the graph's results.

        Raises:
            VerificationError: a result or a written argument is not PyTorch's. Backward raises it
                where a gradient is not.
        """
        if self._left <= 0:
            return self._run(*arguments)
        with self._lock:
            self._left -= 1
            return self._compare(arguments)

    def _compare(self, arguments: Sequence[Any]) -> Any:
        state = torch.get_rng_state()
        exact = _InDouble(self._graph_module, _copies(arguments), state)
        leaves = _copies(arguments)
        started = [_started(leaf) for leaf in leaves]
        expected = self._graph_module(*started)
        torch.set_rng_state(state)  # so that both draw the same random numbers
        followed = [
            a.view_as(a) if _has_gradient(a) and torch.is_grad_enabled() else a for a in arguments
        ]
        results = self._run(*followed)
        self._check("result", results, expected, exact.results)
        self._check("argument", followed, started, exact.arguments)
        self._follow_backward(leaves, followed, expected, results, exact)
        return results

    def _follow_backward(
        self,
        leaves: Sequence[Any],
        followed: Sequence[Any],
        expected: Sequence[Any],
        results: Sequence[Any],
        exact: _InDouble,
    ) -> None:
        """Compare the gradients of the arguments when backward has computed them."""
        places = [i for i, a in enumerate(followed) if a is not leaves[i] and _has_gradient(a)]
        slopes: dict[int, torch.Tensor] = {}
        ends = [i for i, r in enumerate(results) if _has_gradient(r) and _has_gradient(expected[i])]
        if not places or not ends:
            return

        def keep(i: int, slope: torch.Tensor | None) -> None:
            if slope is not None:  # None: nothing that backward starts from depends on it
                slopes[i] = slope.detach()

        for i in ends:
            results[i].register_hook(functools.partial(keep, i))

        def compare(found: Sequence[torch.Tensor | None]) -> None:
            reached = sorted(slopes)
            if not reached:
                return
            gradients = torch.autograd.grad(
                [expected[i] for i in reached],
                [leaves[i] for i in places],
                [slopes[i] for i in reached],
                retain_graph=True,  # as backward may run again
                allow_unused=True,
            )
            given = dict(slopes)
            slopes.clear()
            pairs = [
                (i, ours, torch.zeros_like(ours) if theirs is None else theirs)
                for i, ours, theirs in zip(places, found, gradients, strict=True)
                if ours is not None
            ]
            ours = {i: found for i, found, _ in pairs}
            theirs = {i: gradient for i, _, gradient in pairs}
            self._check_each(
                "gradient of argument",
                ours,
                theirs,
                lambda: exact.gradients(places, given),
                of_gradients=True,
            )

        register_multi_grad_hook([followed[i] for i in places], compare)

    def _check(
        self,
        what: str,
        received: Sequence[Any],
        expected: Sequence[Any],
        exact: Callable[[], dict[int, Any]],
    ) -> None:
        self._check_each(what, dict(enumerate(received)), dict(enumerate(expected)), exact)

    def _check_each(
        self,
        what: str,
        received: dict[int, Any],
        expected: dict[int, Any],
        exact: Callable[[], dict[int, Any]],
        *,
        of_gradients: bool = False,
    ) -> None:
        """Raise VerificationError where two values differ by more than their types allow."""
        floats = [t for t in expected.values() if _is_float(t)]
        tolerance = max((TOLERANCES.get(d, 0.0) for d in self._dtypes), default=0.0)
        least = LEAST_SCALE * max(map(largest_of, floats), default=0.0) if of_gradients else 0.0
        for i, theirs in expected.items():
            overflows = torch.float16 in self._dtypes
            found = difference(received[i], theirs, least, overflows=overflows)
            if found is None or found.relative <= tolerance:
                continue
            if not _is_as_exact(received[i], theirs, exact().get(i), least):
                raise VerificationError(
                    f"The engine computes a value that differs from PyTorch's by "
                    f"{found.relative:.2g} of its largest entry, where {tolerance:.0e} is allowed.",
                    node=f"{what} {i} of a graph of torch.compile",
                    expected=found.expected,
                    received=found.received,
                    remedy="use a release of PyTorch that Steep has been tested with, or run this "
                    "module in PyTorch",
                )


class _InDouble:
    """A graph's values in float64. There are none where it does not run with float64 arguments."""

    def __init__(
        self, graph_module: torch.fx.GraphModule, arguments: Sequence[Any], state: torch.Tensor
    ) -> None:
        self._graph_module, self._state = graph_module, state
        self._leaves = arguments  # as they were before the call
        self._run: tuple[list[Any], list[Any], Sequence[Any]] | None = None

    def results(self) -> dict[int, Any]:
        """Return the graph's results by place."""
        return dict(enumerate(self._values()[2]))

    def arguments(self) -> dict[int, Any]:
        """Return the arguments by place, as the graph leaves them."""
        return dict(enumerate(self._values()[1]))

    def gradients(self, places: Sequence[int], slopes: dict[int, torch.Tensor]) -> dict[int, Any]:
        """Return the gradients of arguments by place, for slopes of results by place."""
        leaves, _, results = self._values()
        if not results:
            return {}
        found = torch.autograd.grad(
            [results[i] for i in slopes],
            [leaves[i] for i in places],
            [slopes[i].to(results[i].dtype) for i in slopes],
            retain_graph=True,
            allow_unused=True,
        )
        return dict(zip(places, found, strict=True))

    def _values(self) -> tuple[list[Any], list[Any], Sequence[Any]]:
        if self._run is None:
            leaves = [
                a.detach().double().requires_grad_(a.requires_grad) if _is_float(a) else a
                for a in self._leaves
            ]
            after = torch.get_rng_state()
            torch.set_rng_state(self._state)
            try:
                with torch.enable_grad():  # hooks of backward run without
                    started = [_started(leaf) for leaf in leaves]
                    self._run = leaves, started, self._graph_module(*started)
            except (RuntimeError, TypeError, ValueError):  # it names a dtype, say
                self._run = leaves, [], ()
            finally:
                torch.set_rng_state(after)
        return self._run


def _is_as_exact(ours: Any, theirs: Any, exact: Any, least: float) -> bool:
    """Return whether a value is about as far from float64 as eager mode's."""
    if not (_is_float(exact) and _is_float(ours) and _is_float(theirs)):
        return False
    apart = [difference(t.detach().double(), exact.detach(), least) for t in (ours, theirs)]
    mine, eager = (0.0 if d is None else d.relative for d in apart)
    return eager <= _UNSURE and mine <= _TIMES * eager


def _copies(arguments: Sequence[Any]) -> list[Any]:
    """Copy tensors into leaves; those that share memory share it in the copies as well."""
    memory: dict[int, torch.UntypedStorage] = {}
    copies: list[Any] = []
    for a in arguments:
        if not isinstance(a, torch.Tensor) or a.layout != torch.strided:
            copies.append(a)
            continue
        storage = a.untyped_storage()
        copied = memory.setdefault(storage.data_ptr(), storage.clone())
        leaf = torch.empty(0, dtype=a.dtype, device=a.device)
        leaf.set_(copied, a.storage_offset(), a.size(), a.stride())
        copies.append(leaf.requires_grad_(a.requires_grad))
    return copies


class _Start(torch.autograd.Function):
    """A tensor over a leaf's memory that, unlike the leaf, a graph may write to."""

    @staticmethod
    def forward(_: Any, leaf: torch.Tensor) -> torch.Tensor:
        start = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        return start.set_(leaf.untyped_storage(), leaf.storage_offset(), leaf.size(), leaf.stride())

    @staticmethod
    def backward(_: Any, *slopes: torch.Tensor) -> torch.Tensor:
        return slopes[0]


def _started(leaf: Any) -> Any:
    return _Start.apply(leaf) if _has_gradient(leaf) else leaf


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()

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


class VerifiedGraph:
    """Runs a graph of ``torch.compile``; its first calls are compared with PyTorch's eager mode.

    What is compared is the graph as ``torch.compile`` hands it over. The functional graph is none
    to compare with: a decomposition of PyTorch's may have made it wrong.

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
        leaves = _copies(arguments)
        started = [_started(leaf) for leaf in leaves]
        expected = self._graph_module(*started)
        torch.set_rng_state(state)  # so that both draw the same random numbers
        followed = [
            a.view_as(a) if _has_gradient(a) and torch.is_grad_enabled() else a for a in arguments
        ]
        results = self._run(*followed)
        self._check("result", results, expected)
        self._check("argument", followed, started)
        self._follow_backward(leaves, followed, expected, results)
        return results

    def _follow_backward(
        self,
        leaves: Sequence[Any],
        followed: Sequence[Any],
        expected: Sequence[Any],
        results: Sequence[Any],
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
            slopes.clear()
            pairs = [
                (i, ours, torch.zeros_like(ours) if theirs is None else theirs)
                for i, ours, theirs in zip(places, found, gradients, strict=True)
                if ours is not None
            ]
            ours = {i: found for i, found, _ in pairs}
            theirs = {i: gradient for i, _, gradient in pairs}
            self._check_each("gradient of argument", ours, theirs, of_gradients=True)

        register_multi_grad_hook([followed[i] for i in places], compare)

    def _check(self, what: str, received: Sequence[Any], expected: Sequence[Any]) -> None:
        self._check_each(what, dict(enumerate(received)), dict(enumerate(expected)))

    def _check_each(
        self,
        what: str,
        received: dict[int, Any],
        expected: dict[int, Any],
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
            if found is not None and found.relative > tolerance:
                raise VerificationError(
                    f"The engine computes a value that differs from PyTorch's by "
                    f"{found.relative:.2g} of its largest entry, where {tolerance:.0e} is allowed.",
                    node=f"{what} {i} of a graph of torch.compile",
                    expected=found.expected,
                    received=found.received,
                    remedy="use a release of PyTorch that Steep has been tested with, or run this "
                    "module in PyTorch",
                )


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

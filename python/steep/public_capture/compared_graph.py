"""Compares the first steps of a graph with PyTorch's: results, writes to arguments, gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import register_multi_grad_hook

from steep.dynamo import forks
from steep.errors import ModelError, VerificationError
from steep.patching.torch_versions import window
from steep.verify.copies import or_zero, wide
from steep.verify.difference import LEAST_SCALE, TOLERANCES, difference, largest_of

_UNSURE = 0.05
"""Largest distance of eager mode from float64 for a comparison, relative to the largest entry."""

_TIMES = 10
"""How many times eager mode's distance from float64 a value may have."""


class ComparedGraph:
    """Runs a graph of ``torch.compile``; its first calls are compared with PyTorch's eager mode.

    The reference is the graph of ``torch.compile``, not the functional graph, which a decomposition
    of PyTorch may have made wrong.

    If a value differs by more than its dtypes allow, the graph also runs in float64. A graph that
    amplifies rounding errors, such as batch normalisations of few rows, makes eager mode inexact
    too: a value is accepted if it is at most 10 times as far from float64 as eager mode's.

    Calls from several threads are safe; those that are compared wait for each other.

    Args:
        graph_module: the graph; a call of it runs in eager mode.
        run: the function that is compared with it, called with the same arguments.
        steps: how many first calls are compared, each with its backward.
        dtypes: dtypes of all values that ``run`` computes; it may grow until backward runs.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        run: Callable[..., Sequence[Any]],
        steps: int,
        dtypes: set[torch.dtype],
    ) -> None:
        self._graph_module, self._run = graph_module, run
        self._steps_left, self._dtypes = steps, dtypes

    def __call__(self, *arguments: object) -> Sequence[Any]:
        """Return the graph's results.

        Raises:
            VerificationError: a result or a written argument differs from PyTorch's. Backward
                raises it if a gradient does.
        """
        if self._steps_left <= 0:
            return self._run(*arguments)
        with forks.tracing:
            results = self._compare(arguments)
            self._steps_left -= 1  # not reached if PyTorch raises: then nothing was compared
            return results

    def _compare(self, arguments: Sequence[Any]) -> Sequence[Any]:
        state = torch.get_rng_state()
        leaves = _copies(arguments)
        starts = [_start(leaf) for leaf in leaves]
        expected = self._graph_module(*starts)
        exact = _InDouble(self._graph_module, _unwritten(leaves, arguments), state)
        torch.set_rng_state(state)  # both must draw the same random numbers
        copies = [
            a.view_as(a) if _has_gradient(a) and torch.is_grad_enabled() else a for a in arguments
        ]
        results = self._run(*copies)
        self._check("result", _by_place(results), _by_place(expected), exact.results)
        self._check("argument", _by_place(copies), _by_place(starts), exact.arguments)
        self._follow_backward(leaves, copies, expected, results, exact)
        return results

    def _follow_backward(
        self,
        leaves: Sequence[Any],
        copies: Sequence[Any],
        expected: Sequence[Any],
        results: Sequence[Any],
        exact: _InDouble,
    ) -> None:
        """Compare the gradients of the arguments when backward has computed them."""
        places = [i for i, a in enumerate(copies) if _has_gradient(a)]
        ends = [i for i, r in enumerate(results) if _has_gradient(r) and _has_gradient(expected[i])]
        if not ends:
            return
        slopes: dict[int, torch.Tensor] = {}
        received: dict[int, torch.Tensor] = {}

        def keep_slope(i: int, slope: torch.Tensor | None) -> None:
            if slope is not None:  # None: no gradient flows to this result
                slopes[i] = slope.detach()

        def keep_gradient(i: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
            if gradient is None:
                return None
            # a copy: autograd adds the gradients of other uses in place
            received[i] = gradient.detach().clone()
            if torch.is_grad_enabled() and not gradient.requires_grad:  # create_graph=True
                return _first_derivative(gradient, leaves[i])
            return None

        def compare(_: Sequence[torch.Tensor | None]) -> None:
            output_gradients, ours = dict(slopes), dict(received)
            slopes.clear()
            received.clear()
            if not output_gradients or not ours:
                return
            gradients = torch.autograd.grad(
                [expected[i] for i in output_gradients],
                [leaves[i] for i in ours],
                [*output_gradients.values()],
                retain_graph=True,  # backward may run again
                allow_unused=True,
            )
            pairs = zip(ours, gradients, strict=True)
            theirs = {i: or_zero(gradient, ours[i]) for i, gradient in pairs}
            least = LEAST_SCALE * max(map(largest_of, theirs.values()), default=0.0)
            exactly = functools.partial(exact.gradients, [*ours], output_gradients)
            self._check("gradient of argument", ours, theirs, exactly, least)

        for i in ends:
            results[i].register_hook(functools.partial(keep_slope, i))
        for i in places:
            copies[i].register_hook(functools.partial(keep_gradient, i))
        register_multi_grad_hook([copies[i] for i in places], compare)

    def _check(
        self,
        what: str,
        received: dict[int, Any],
        expected: dict[int, Any],
        exactly: Callable[[], dict[int, Any]],
        least: float = 0.0,
    ) -> None:
        """Raise VerificationError if values differ by more than their dtypes allow.

        Values are dicts by position; ``exactly`` returns those in float64. ``least`` is the
        smallest number that a difference is relative to.
        """
        tolerance = max((TOLERANCES.get(d, 0.0) for d in self._dtypes), default=0.0)
        overflows = torch.float16 in self._dtypes
        for i, theirs in expected.items():
            worst = difference(received[i], theirs, least, overflows=overflows)
            if worst is None or worst.relative <= tolerance:
                continue
            if not _is_as_exact(received[i], theirs, exactly().get(i), least):
                raise VerificationError(
                    f"The engine computes a value that differs from PyTorch's by "
                    f"{worst.relative:.2g} of its largest entry, where {tolerance:.0e} is allowed.",
                    node=f"{what} {i} of a graph of torch.compile",
                    expected=worst.expected,
                    received=worst.received,
                    remedy="use a release of PyTorch that Steep has been tested with, or run this "
                    "module in PyTorch",
                )


class _InDouble:
    """A graph's values in float64; none if it does not run with float64 arguments.

    ``arguments`` are those before the call; ``state`` is the random generator's state then.
    """

    def __init__(
        self, graph_module: torch.fx.GraphModule, arguments: Sequence[Any], state: torch.Tensor
    ) -> None:
        self._graph_module, self._state = graph_module, state
        self._arguments = arguments
        self._run: tuple[list[Any], list[Any], Sequence[Any]] | None = None

    def results(self) -> dict[int, Any]:
        """Return the graph's results by position."""
        return _by_place(self._values()[2])

    def arguments(self) -> dict[int, Any]:
        """Return the arguments by position, as the graph leaves them."""
        return _by_place(self._values()[1])

    def gradients(self, places: Sequence[int], slopes: dict[int, torch.Tensor]) -> dict[int, Any]:
        """Return the gradients of arguments at ``places``, for gradients ``slopes`` of results."""
        leaves, _, results = self._values()
        if not results:
            return {}
        gradients = torch.autograd.grad(
            [results[i] for i in slopes],
            [leaves[i] for i in places],
            [slopes[i].to(results[i].dtype) for i in slopes],
            retain_graph=True,
            allow_unused=True,
        )
        return dict(zip(places, gradients, strict=True))

    def _values(self) -> tuple[list[Any], list[Any], Sequence[Any]]:
        if self._run is None:
            leaves = [wide(a) for a in self._arguments]
            after = torch.get_rng_state()
            torch.set_rng_state(self._state)
            try:
                # backward hooks run under no_grad, and autocast would use 16-bit products
                with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                    starts = [_start(leaf) for leaf in leaves]
                    self._run = leaves, starts, self._graph_module(*starts)
            except (RuntimeError, TypeError, ValueError):  # for example, it names a dtype
                self._run = leaves, [], ()
            finally:
                torch.set_rng_state(after)
        return self._run


def _is_as_exact(ours: object, theirs: object, exact: object, least: float) -> bool:
    """Return whether a value is about as far from float64 as eager mode's."""
    if not (_is_float(exact) and _is_float(ours) and _is_float(theirs)):
        return False
    apart = [difference(t.detach().double(), exact.detach(), least) for t in (ours, theirs)]
    mine, eager = (0.0 if d is None else d.relative for d in apart)
    return eager <= _UNSURE and mine <= _TIMES * eager


def _copies(arguments: Sequence[Any]) -> list[Any]:
    """Copy tensors into leaves; tensors that share memory also share it in the copies."""
    memory: dict[tuple[torch.device, int], torch.UntypedStorage] = {}
    copies: list[Any] = []
    for a in arguments:
        if not isinstance(a, torch.Tensor) or a.layout != torch.strided:
            copies.append(a)
            continue
        storage = a.untyped_storage()
        where = a.device, storage.data_ptr()
        if where not in memory:
            memory[where] = storage.clone()
        leaf = torch.empty(0, dtype=a.dtype, device=a.device)
        leaf.set_(memory[where], a.storage_offset(), a.size(), a.stride())
        copies.append(leaf.requires_grad_(a.requires_grad))
    return copies


def _unwritten(leaves: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments before a run: its leaves, or copies of arguments that it wrote to."""
    return [
        leaf if leaf is a or torch.equal(leaf, a) else _copies([a])[0]
        for leaf, a in zip(leaves, arguments, strict=True)
    ]


class _Start(torch.autograd.Function):
    """Returns a tensor on a leaf's memory that a graph may write to, unlike the leaf."""

    @staticmethod
    def forward(_: FunctionCtx, leaf: torch.Tensor) -> torch.Tensor:
        start = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        return start.set_(leaf.untyped_storage(), leaf.storage_offset(), leaf.size(), leaf.stride())

    @staticmethod
    def backward(_: FunctionCtx, *slopes: torch.Tensor) -> torch.Tensor:
        return slopes[0]


class _FirstDerivative(torch.autograd.Function):
    """Returns a gradient whose own backward is an error; ``_`` requires gradients.

    PyTorch 2.12 detaches what a graph saves of views, such as the arguments of a comparison. The
    gradient would seem constant, and a penalty on it would train nothing.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, gradient: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: FunctionCtx, *slopes: torch.Tensor) -> None:
        raise ModelError(
            "There are no second derivatives (double backward) with this release of PyTorch.",
            expected=f"PyTorch {window()}",
            received=f"PyTorch {torch.__version__}",
            remedy="install a release that the tests have run with, or run this module in PyTorch",
        )


def _first_derivative(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _FirstDerivative.apply(gradient, leaf)
    return result


def _by_place(values: Sequence[object]) -> dict[int, object]:
    return dict(enumerate(values))


def _start(leaf: object) -> object:
    return _Start.apply(leaf) if _has_gradient(leaf) else leaf


def _has_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_float(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_floating_point()

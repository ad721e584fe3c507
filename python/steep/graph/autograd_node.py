"""A run of a graph as a node of PyTorch's autograd: forward, backward and second derivatives."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx
from torch.utils.dlpack import from_dlpack, to_dlpack

from steep.errors import DataError, ModelError
from steep.graph.engine_graph import EngineGraph
from steep.torch_internals.autograd import forward_level, graph_is_kept
from steep.torch_internals.dispatch import TorchDispatchModeKey, dispatch_mode
from steep.torch_internals.functorch import (
    add_batch_dim,
    decrement_legacy_vmap,
    get_unwrapped,
    increment_legacy_vmap,
    is_batchedtensor,
    is_legacy_batchedtensor,
    legacy_add_batch_dim,
    legacy_remove_batch_dim,
    maybe_get_bdim,
    maybe_get_level,
)
from steep.torch_internals.tensors import set_hooks, version_of

Gradients = Sequence[torch.Tensor | None]
"""The gradients of the results as autograd passes them to backward; None for unused results."""


def is_observed() -> bool:
    """Return whether PyTorch only propagates shapes: a FakeTensorMode is active."""
    return dispatch_mode(TorchDispatchModeKey.FAKE) is not None


def has_tangents(arguments: Sequence[Any]) -> bool:
    """Return whether an argument of a call has a tangent (forward-mode derivatives)."""
    return forward_level() >= 0 and any(
        isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None
        for t in arguments
    )


class EngineFunction(torch.autograd.Function):
    """A run of a graph as one node of autograd: ``apply(graph, tensors, *inputs)``.

    ``tensors`` are all inputs of the run; ``inputs`` are those whose gradients backward returns.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: FunctionCtx, graph: EngineGraph, tensors: list[torch.Tensor], *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the results; save the tensors that backward needs."""
        # Aliases keep the tensors' present memory, and share their version counters.
        aliases = [t.detach() for t in tensors]
        results, ctx.run, is_read = graph.run(aliases, gradients=True)
        ctx.graph = graph
        ctx.pointers = [t.data_ptr() for t in tensors]
        ctx.set_materialize_grads(False)
        # The engine holds the values. Saving these tensors makes PyTorch detect changes before
        # backward, and refuse a second backward without retain_graph.
        saved_results = [
            r
            for r, is_saved in zip(results, graph.saved_results or is_read, strict=True)
            if is_saved
        ]
        ctx.mark_non_differentiable(
            *(r for r, constant in zip(results, graph.constant_results, strict=True) if constant)
        )
        ctx.tensors = tensors
        ctx.save_for_backward(*(aliases[i] for i in graph.saved_positions), *saved_results)
        ctx.others = [aliases[i] for i in graph.other_positions]
        ctx.versions = [version_of(t) for t in ctx.others]
        positions = graph.inputs if graph.is_differentiated_again else ()
        ctx.copies = [tensors[i].detach().clone() for i in positions]
        return tuple(results)

    @staticmethod
    def backward(
        ctx: FunctionCtx, *gradients: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Return a gradient, or None, for each argument of apply()."""
        # raises if a tensor was changed in place or freed
        saved_tensors, graph = ctx.saved_tensors, ctx.graph
        if all(g is None for g in gradients):
            return (None,) * (2 + len(graph.wanted_inputs))
        _refuse_late_hooks(ctx, gradients)
        aliases = graph.merge_saved_and_others(saved_tensors, ctx.others)
        changed = [version_of(t) for t in ctx.others] != ctx.versions
        if torch.is_grad_enabled():  # create_graph=True
            there = zip(ctx.tensors, aliases, ctx.pointers, strict=True)
            stays = all(a.data_ptr() == at for a, at in zip(aliases, ctx.pointers, strict=True))
            changed |= stays and ctx.run.shows_writes()
            if changed or any(t.data_ptr() not in (a.data_ptr(), at) for t, a, at in there):
                raise _error_of_changes()
            # writes by .data or NumPy do not change the version counter: compare values
            copies = ctx.copies or [from_dlpack(c) for c in ctx.run.copies()]
            if not all(map(_same_bytes, copies, (aliases[i] for i in graph.inputs))):
                raise _error_of_changes()
            graph.is_differentiated_again = True
            return None, None, *_differentiable_backward(graph, [*ctx.tensors], gradients)
        input_gradients = _over_batch(
            gradients, lambda each: _plain_backward(ctx, each, aliases, changed=changed)
        )
        if saved_tensors and not graph_is_kept():
            # free the copies of inputs; a second backward raises at saved_tensors
            ctx.run = ctx.copies = None
        return None, None, *input_gradients


def differentiable(
    graph: EngineGraph, tensors: list[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Run a graph as a node of autograd; return its results, prepared for hooks on them."""
    results = list(EngineFunction.apply(graph, tensors, *inputs))
    for i in graph.hook_order:
        result = results[i]
        if (node := result.grad_fn) is not None:
            # the dict that Tensor.register_hook would make; it may outlive the tensor
            hooks = _Hooks()
            set_hooks(result, hooks)
            if i in graph.later_results:
                record = node.__dict__.setdefault("watched", {})
                record[i] = weakref.ref(result), hooks
    return results


class _Hooks(collections.OrderedDict[int, Callable[[torch.Tensor], torch.Tensor | None]]):
    """Hooks on a result, which are called only if the result has a gradient.

    If only other results of the node have a gradient, PyTorch calls these hooks with None. In eager
    PyTorch each result has its own node, which would not run. PyTorch's multi-tensor hook counts
    the results of a node, so it is called for each.
    """

    def __setitem__(self, key: int, hook: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        if getattr(hook, "__module__", "") != torch.autograd.graph.__name__:
            super().__setitem__(key, lambda g: None if g is None else hook(g))
        else:
            super().__setitem__(key, hook)


def _refuse_late_hooks(ctx: FunctionCtx, gradients: Gradients) -> None:
    """Raise ModelError for late hooks on a result from which another result is computed.

    Such a hook would see the gradient without the other result's part, which this node adds. Hooks
    that forward registers are known at capture; hooks that are registered after forward are not.
    """
    for i, (reference, hooks) in getattr(ctx, "watched", {}).items():
        result = reference()
        if not hooks and (result is None or not result.retains_grad):
            continue
        if any(gradients[j] is not None for j in ctx.graph.later_results[i]):
            raise ModelError(
                "A hook or retain_grad() after forward is on a result from which another "
                "result is computed: it would see only a part of the gradient.",
                expected="register_hook() or retain_grad() within forward",
                received=f"a hook on result {i} of a graph",
                remedy=(
                    "register it within forward, or wrap each part of the module in its own "
                    "ORTModule"
                ),
            )


def _plain_backward(
    ctx: FunctionCtx, gradients: Gradients, aliases: Sequence[torch.Tensor], changed: bool
) -> list[torch.Tensor | None]:
    graph = ctx.graph
    arrays = [None if g is None else to_dlpack(g.contiguous()) for g in gradients]
    # memory that was freed and filled again since forward, as FSDP does
    new_inputs = graph.find_moved_inputs(aliases, ctx.pointers)
    capsules = graph.program.backward(ctx.run, arrays, new_inputs, changed, graph_is_kept())
    input_gradients = [None if c is None else from_dlpack(c) for c in capsules]
    if None in capsules and graph.reach_of_results:
        _fill_in_zeros(graph, input_gradients, gradients, aliases)
    return input_gradients


def _over_batch(
    gradients: Gradients, backward: Callable[[Gradients], list[torch.Tensor | None]]
) -> list[torch.Tensor | None]:
    """Run ``backward`` once for each row of batched gradients; return the batched results.

    Batched gradients come from ``torch.vmap`` over backward, and from its legacy version, which
    ``torch.autograd.grad(…, is_grads_batched=True)`` and vectorized Jacobians use.
    """
    batches = [_batch(g) for g in gradients]
    levels = [b.level for b in batches if b is not None]
    if not levels:
        return backward(gradients)
    innermost = max(levels)
    columns: list[Sequence[torch.Tensor | None]] = []
    innermost_batch = None
    for g, batch in zip(gradients, batches, strict=True):
        if batch is not None and batch.level == innermost:
            innermost_batch = batch
            columns.append(batch.rows())
        else:
            columns.append([g])
    assert innermost_batch is not None
    count = max(map(len, columns))
    rows = zip(*(c if len(c) == count else [*c] * count for c in columns), strict=True)
    each = zip(*(_over_batch(row, backward) for row in rows), strict=True)
    return [
        None if None in column else innermost_batch.again(torch.stack(column)) for column in each
    ]


@dataclasses.dataclass(frozen=True)
class _Batch:
    """A gradient inside vmap: a tensor with one more dimension, at a vmap level."""

    level: int
    rows: Callable[[], Sequence[torch.Tensor]]
    again: Callable[[torch.Tensor], torch.Tensor]  # batches a result's rows along dimension 0


def _batch(g: torch.Tensor | None) -> _Batch | None:
    if g is None:
        return None
    if is_batchedtensor(g):
        level = maybe_get_level(g)
        return _Batch(
            level,
            lambda: get_unwrapped(g).unbind(maybe_get_bdim(g)),
            lambda t: add_batch_dim(t, 0, level),
        )
    if is_legacy_batchedtensor(g):  # legacy vmap
        level = increment_legacy_vmap() - 1
        decrement_legacy_vmap()
        return _Batch(
            level,
            lambda: legacy_remove_batch_dim(g, level, 0, 0).unbind(),
            lambda t: legacy_add_batch_dim(t, 0, level),
        )
    return None


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    one, other = (t.detach().contiguous().view(-1).view(torch.uint8) for t in (a, b))
    return bool(torch.equal(one, other))


def _error_of_changes() -> DataError:
    return DataError(
        "Values that forward read were changed since, and derivatives of gradients need them.",
        expected="the values that forward read",
        remedy="change them after backward, or pass a clone()",
    )


def _fill_in_zeros(
    graph: EngineGraph,
    input_gradients: list[torch.Tensor | None],
    gradients: Gradients,
    tensors: Sequence[torch.Tensor],
) -> None:
    """Replace None by zeros where PyTorch gives a gradient, since optimizers skip None."""
    pairs = zip(graph.reach_of_results, gradients, strict=True)
    reach = set().union(*(each for each, g in pairs if g is not None))
    for k, i in enumerate(graph.wanted_inputs):
        if input_gradients[k] is None and i in reach:
            input_gradients[k] = torch.zeros(tensors[i].shape, dtype=tensors[i].dtype)


def _differentiable_backward(
    graph: EngineGraph, tensors: list[torch.Tensor], gradients: Gradients
) -> list[torch.Tensor | None]:
    """Run backward as a differentiable graph of its own, for derivatives of the gradients."""
    among = tuple(i for i, g in enumerate(gradients) if g is not None)
    tensors += [g for g in gradients if g is not None]
    positions = tuple(i for i, t in enumerate(tensors) if t.requires_grad)
    again = graph.differentiate(positions, among)
    inputs = [tensors[i] for i in again.wanted_inputs]
    return graph.gradients_from(list(EngineFunction.apply(again, tensors, *inputs)))

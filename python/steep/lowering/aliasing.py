"""Which tensors of a captured graph share memory, and which calls write to them."""

from __future__ import annotations

import functools
import inspect
import logging
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from steep.errors import ModelError
from steep.torch_internals.dispatch import FakeTensor
from steep.torch_internals.functorch import is_functorch_wrapped_tensor
from steep.torch_internals.operators import OpOverload, schema_of
from steep.torch_internals.pytree import tree_leaves
from steep.torch_internals.tensors import storage_id

log = logging.getLogger("steep")


def memory_of(node: torch.fx.Node) -> int | None:
    """Return a key for the memory of a tensor; None within function transforms."""
    return memory_named(node.meta.get("example_value"))


def memory_named(value: object) -> int | None:
    """Return a key for the memory of a node's example value, as ``memory_of``."""
    if not isinstance(value, torch.Tensor) or is_functorch_wrapped_tensor(value):
        return None
    return storage_id(value)


_IN_PLACE = re.compile(
    r"(__)?i(add|sub|mul|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift)(__)?"
    r"|(__)?setitem(__)?|\w*[a-z0-9]_"
)


def called_name(n: torch.fx.Node) -> str:
    """Return the name of the method or function that a node calls; "" for what has none."""
    return n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")


def insert_copy(n: torch.fx.Node) -> torch.fx.Node:
    """Insert a copy of a result behind its operation, for all that reads it; return the copy."""
    with n.graph.inserting_after(n):
        copy = n.graph.call_method("clone", (n,))
    copy.meta = dict(n.meta)
    n.replace_all_uses_with(copy, lambda user: user is not copy)
    return copy


def written_by(n: torch.fx.Node) -> torch.fx.Node | None:
    """Return the tensor that a call mutates and returns; None if it mutates none or several."""
    targets = all_written_by(n)
    return targets[0] if len(targets) == 1 else None


def all_written_by(n: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the tensors that a call changes in place."""
    if not n.op.startswith("call_"):
        return []
    candidates: Any = []
    if "out" in n.kwargs:
        candidates = n.kwargs["out"]
    elif isinstance(n.target, OpOverload):
        candidates = _written_by_operator(n.target, n.args, n.kwargs)
    elif n.args and _IN_PLACE.fullmatch(called_name(n)):
        candidates = n.args[0]
    elif n.op == "call_function":
        candidates = [written_if_asked(n.target, n.args, n.kwargs)]
    targets = candidates if isinstance(candidates, (tuple, list)) else [candidates]
    return [t for t in targets if isinstance(t, torch.fx.Node)]  # arguments may also be numbers


def _written_by_operator(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the arguments that an operator mutates according to its schema."""
    arguments = schema_of(operator).arguments
    values = dict(zip((a.name for a in arguments), args, strict=False)) | dict(kwargs)
    writes = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    targets: list[Any] = tree_leaves([values.get(name) for name in writes])
    return targets


def written_if_asked(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Return the argument that a function writes because of ``inplace=True``, or None."""
    if (signature := _of_option(function)) is None:
        return None
    arguments = signature.bind(*args, **kwargs).arguments
    return next(iter(arguments.values())) if arguments.get("inplace") else None


@functools.cache
def _of_option(function: Callable[..., object]) -> inspect.Signature | None:
    """Return the signature of a function with an ``inplace`` option, such as ``F.silu``."""
    if getattr(function, "__module__", None) != F.__name__:
        return None
    signature = inspect.signature(function)
    return signature if "inplace" in signature.parameters else None


def first_writer(graph: torch.fx.Graph, tensor: torch.Tensor) -> torch.fx.Node | None:
    """Return the first operation that writes to a placeholder's memory."""
    memory = memory_named(tensor)
    writes = ((n, {memory_of(t) for t in all_written_by(n)}) for n in graph.nodes)
    return next((n for n, places in writes if memory in places), None)


def guard_aliasing(
    call: Callable[..., Any],
    fallback: Callable[..., Any],
    graphs: Sequence[Any],
    examples: Sequence[Any],
    fallback_advice: str,
) -> Callable[..., Any]:
    """Return ``call`` with a check that no argument it writes shares memory with another.

    Dynamo captures a graph for tensors with memory of their own, and adds no guard for that. If
    arguments shared memory when the graph was captured, the graph already respects it, and ``call``
    is returned unchanged.

    Args:
        call: runs a graph.
        fallback: runs the same graph in PyTorch; it is called if arguments share memory.
        graphs: the parts of the graph that run in the engine: ``call`` itself, or parts of it.
        examples: the arguments that it was captured for.
        fallback_advice: "": call ``fallback`` then. Otherwise raise ModelError, with a remedy that
            says what makes PyTorch run the graph.
    """
    if not any(graph.lowered.write_targets for graph in graphs):
        return call
    whole = len(graphs) == 1 and call in graphs
    targets = graphs[0].lowered.write_targets if whole else None
    if shares(examples, targets):
        return call

    is_said = False
    memory = _Memory(examples)

    def run(*arguments: object) -> object:
        nonlocal is_said
        if not memory.is_shared(arguments, targets):
            return call(*arguments)
        if fallback_advice:
            raise ModelError(
                "An argument that forward writes shares its memory with another.",
                expected="tensors that do not share memory, as in the earlier call",
                remedy=f"clone() one of them, or {fallback_advice}",
            )
        if not is_said:
            log.warning("PyTorch runs a graph in calls whose arguments share memory")
            is_said = True
        return fallback(*arguments)

    return run


def shares(arguments: Sequence[object], targets: Collection[int] | None) -> bool:
    """Return whether an argument at one of ``targets`` (None: any) shares memory with another."""
    tensors = [
        (i, t)
        for i, t in enumerate(arguments)
        if isinstance(t, torch.Tensor)
        and not isinstance(t, FakeTensor)  # an example, which has no address
        and t.layout is torch.strided
        and not is_functorch_wrapped_tensor(t)
    ]
    return any(targets is None or i in targets or j in targets for i, j in overlapping(tensors))


class _Memory:
    """The answer of ``shares`` for a graph's last call, which holds while tensors stay in place.

    Args:
        examples: the arguments of the capture. A tensor among them is one in each call.
    """

    def __init__(self, examples: Sequence[Any]) -> None:
        self._tensors = [i for i, t in enumerate(examples) if isinstance(t, torch.Tensor)]
        self._last: tuple[list[Any], bool] | None = None

    def is_shared(self, arguments: Sequence[Any], targets: Collection[int] | None) -> bool:
        """Return what ``shares`` returns for the same ``targets`` in each call."""
        tensors = [arguments[i] for i in self._tensors]
        try:
            places = [*map(torch.Tensor.data_ptr, tensors), *map(_nbytes, tensors)]
        except RuntimeError:  # a tensor without memory of its own
            return shares(arguments, targets)
        if not all(map(torch.Tensor.is_contiguous, tensors)):
            others = [(k, t) for k, t in enumerate(tensors) if not t.is_contiguous()]
            places += [(k, t.shape, t.stride()) for k, t in others]
        last = self._last
        if last is None or last[0] != places:
            self._last = last = places, shares(arguments, targets)
        return last[1]


_nbytes = operator.attrgetter("nbytes")


def overlapping(tensors: Iterable[tuple[int, torch.Tensor]]) -> Iterator[tuple[int, int]]:
    """Yield pairs of keys of tensors that overlap in memory, from pairs (key, tensor).

    Each tensor that overlaps another is in a pair, but not all pairs are given.
    """
    reaches = sorted((*_reach(t), key) for key, t in tensors if t.numel())
    end, last = 0, 0
    for start, stop, key in reaches:
        if start < end:
            yield key, last
        if stop > end:
            end, last = stop, key


def _reach(t: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte, and of the byte after its last."""
    start = t.data_ptr()
    if t.is_contiguous():
        return start, start + t.nbytes
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return start, start + (last + 1) * t.element_size()

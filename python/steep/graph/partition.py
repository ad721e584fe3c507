"""Divides a captured graph into parts for the engine and operations that PyTorch runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.passes.split_module import split_module

from steep.graph.compiled_graph import CompiledGraph, compile_captured
from steep.graph.lowered import NothingToRun
from steep.lowering.aliasing import all_written_by, insert_copy, memory_of
from steep.lowering.capture_context import CaptureContext
from steep.lowering.func_transforms import in_pytorch, transforms
from steep.lowering.lower import CannotLower
from steep.torch_internals.autograd import enter_autocast, exit_autocast, set_grad_enabled
from steep.torch_internals.dynamo import register_hook_op
from steep.torch_internals.operators import aten
from steep.torch_internals.pytree import tree_leaves

CompilePart = Callable[[torch.fx.GraphModule, Sequence[Any], CaptureContext], CompiledGraph]

_ROUNDS = 16  # of searching for operations that cannot be lowered
_HOOKS = {"register_hook", torch.Tensor.register_hook, register_hook_op}
_NAME = "steep.name"  # meta key: an operation's name in the whole graph; parts rename operations
# These read memory by strides: if a part returns a slice, its rows are not spaced as before.
_OF_MEMORY = {"as_strided", "as_strided_copy", "as_strided_scatter", "resize", "set"}


def compile_parts(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    context: CaptureContext,
    first: CannotLower,
    compile_part: CompilePart = compile_captured,
) -> tuple[Callable[..., Any], list[CompiledGraph], list[CannotLower]]:
    """Compile a graph in parts, with operations between them that PyTorch runs.

    Returns a function that runs the graph, its compiled parts, and why PyTorch runs the other
    operations. ``first`` is the error of the whole graph; ``compile_part`` compiles a part. Raises
    CannotLower if no part can be compiled.
    """
    refusals: dict[str, CannotLower] = {}
    example_of = dict(zip(_placeholders(graph_module), examples, strict=True))
    new_refusals = [first, *first.others]
    for _ in range(_ROUNDS):
        known_before = {*refusals}
        for e in new_refusals:
            at = _operation(graph_module, e.node) or _transform_in(graph_module)
            if not at or at in known_before or _must_stay_whole(graph_module, at, context):
                raise e
            around = _region_around(graph_module.graph, at, context.grad_mode)
            around = around or _transform_around(graph_module, at)
            for name in (*around, *_of_unnamed_extents(graph_module.graph)):
                refusals.setdefault(name, _as_of(e, name))
        _copy_what_pytorch_writes(graph_module.graph, refusals)
        parts = _split(graph_module, frozenset(refusals))
        compiled, new_refusals = _compile_all(
            parts, example_of, context, frozenset(refusals), compile_part
        )
        if new_refusals:
            continue
        if not compiled:
            *others, last = {str(e): e for e in refusals.values()}.values()
            reason = "; ".join([*map(str, others), last.reason])
            raise CannotLower(reason, "", last.place, last.remedy)
        return in_pytorch(parts), compiled, list(refusals.values())
    raise new_refusals[-1]


def _copy_what_pytorch_writes(graph: torch.fx.Graph, refusals: dict[str, CannotLower]) -> None:
    """Let PyTorch copy each result of the engine that an operation in ``refusals`` writes in place.

    The engine's backward may read its own results. The copies are operations in ``refusals``.
    """
    made_by: dict[int | None, torch.fx.Node] = {}  # the operation of each memory's first tensor
    for n in list(graph.nodes):
        memory = memory_of(n)
        if memory is not None:
            made_by.setdefault(memory, n)
        for target in all_written_by(n) if n.name in refusals else ():
            memory = memory_of(target)
            maker = made_by.get(memory)
            if maker is None or not maker.op.startswith("call_") or maker.name in refusals:
                continue
            made_by[memory] = copy = insert_copy(maker)
            refusals[copy.name] = _as_of(refusals[n.name], copy.name)


def _of_unnamed_extents(graph: torch.fx.Graph) -> list[str]:
    """Return the operations between the first and the last that depend on extents without a node.

    If a call gets a tensor in place of a number (``arange(t)``, ``x.narrow(0, t, 2)``), extents and
    offsets depend on its value. No node returns this value, so it cannot be passed to a part.
    """
    symbols: set[Any] = set()
    for n in graph.nodes:
        value = n.meta.get("example_value")
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            symbols |= free_symbols(value)
    operations = [n for n in graph.nodes if n.op.startswith("call_")]
    unnamed = {n for n in operations if _symbols_of(n) - symbols}
    depends = [n in unnamed or not unnamed.isdisjoint(n.all_input_nodes) for n in operations]
    if not unnamed:
        return []
    last = len(depends) - depends[::-1].index(True)
    return [n.name for n in operations[depends.index(True) : last]]


def _symbols_of(n: torch.fx.Node) -> set[Any]:
    tensors = [t for t in tree_leaves(n.meta.get("example_value")) if isinstance(t, torch.Tensor)]
    return {symbol for t in tensors for symbol in free_symbols(t)}


def _operation(graph_module: torch.fx.GraphModule, name: str) -> str:
    """Return the operation to run in PyTorch, "" if unknown.

    For one of several results, that is the operation that returns them all.
    """
    node = next((n for n in graph_module.graph.nodes if n.name == name), None)
    while node is not None and (source := _taken_from(node)) is not None:
        node = source
    return node.name if node is not None and node.op.startswith("call_") else ""


def _as_of(e: CannotLower, name: str) -> CannotLower:
    """Return a refusal of the operation ``name`` for the same reason."""
    if e.node == name:
        return e
    other = CannotLower(e.reason, name, e.place, e.remedy)
    other.others = e.others
    return other


def _transform_around(graph_module: torch.fx.GraphModule, at: str) -> list[str]:
    """Return the names of an operation and of the function transform around it, if any."""
    return next((names for names in _transforms(graph_module.graph) if at in names), [at])


def _transform_in(graph_module: torch.fx.GraphModule) -> str:
    """Return the first function transform, as the cause if no other is known; else ""."""
    return next((names[0] for names in _transforms(graph_module.graph)), "")


def _transforms(graph: torch.fx.Graph) -> Iterator[list[str]]:
    """Yield the names of the operations of each transform of ``torch.func``."""
    for region in transforms(graph):
        yield [n.name for n in region if n.op.startswith("call_")]


def _split(graph_module: torch.fx.GraphModule, refusals: frozenset[str]) -> torch.fx.GraphModule:
    """Return the graph as calls of subgraphs; each is either for the engine or for PyTorch."""
    part: dict[str, int] = {}
    operations = [n for n in graph_module.graph.nodes if n.op.startswith("call_")]
    for n in operations:
        n.meta[_NAME] = n.name
    ends, number, before = _find_hooked(graph_module.graph), 0, None
    for n in operations:
        if before is not None:
            other = (n.name in refusals) != (before.name in refusals)
            number += other or before in ends
        part[n.name], before = number, n
    for n in operations:
        if (source := _taken_from(n)) is not None and source.name in part:
            part[n.name] = part[source.name]
    return split_module(
        graph_module,
        None,  # type: ignore[arg-type]
        lambda n: part.get(n.name, 0),
        keep_original_order=True,
    )


def _find_hooked(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the operations whose results get hooks in forward: a part ends after each.

    A hook gets the gradient of all uses, also of earlier ones. PyTorch would not see the uses in
    the part that computes the tensor.
    """
    tensors = [n.args[0] for n in graph.nodes if n.target in _HOOKS]
    return {_taken_from(t) or t for t in tensors if isinstance(t, torch.fx.Node)}


def _taken_from(n: torch.fx.Node) -> torch.fx.Node | None:
    """Return the operation of whose results this one takes one, or an extent; else None."""
    if n.target is aten.sym_size.int and isinstance(n.args[0], torch.fx.Node):
        return n.args[0]
    source = n.args[0] if n.target is operator.getitem else None
    if isinstance(source, torch.fx.Node):
        return source if isinstance(source.meta.get("example_value"), (tuple, list)) else None
    return None


def _compile_all(
    parts: torch.fx.GraphModule,
    example_of: dict[str, Any],
    context: CaptureContext,
    refusals: frozenset[str],
    compile_part: CompilePart,
) -> tuple[list[CompiledGraph], list[CannotLower]]:
    """Replace each subgraph by its compiled part; return these, and why others were refused."""
    compiled, new_refusals = [], []
    for name, part in list(parts.named_children()):
        if not isinstance(part, torch.fx.GraphModule):
            continue
        names = {n.name: n.meta[_NAME] for n in part.graph.nodes if n.op.startswith("call_")}
        modes = {n.name for n in part.graph.nodes if n.target is set_grad_enabled}
        if refusals.intersection(example_of for n, example_of in names.items() if n not in modes):
            setattr(parts, name, _Run(_in_its_mode(in_pytorch(part))))
            continue
        placeholders = [n for n in part.graph.nodes if n.op == "placeholder"]
        examples = [example_of.get(n.name, n.meta["example_value"]) for n in placeholders]
        try:
            compiled.append(compile_part(part, examples, context))
        except NothingToRun:
            setattr(parts, name, _Run(in_pytorch(part)))
            continue
        except CannotLower as e:
            for each in (e, *e.others):
                each.node = names.get(each.node, "")
                new_refusals.append(each)
            continue
        setattr(parts, name, _Run(compiled[-1]))
    return compiled, new_refusals


def _in_its_mode(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that restores the grad mode, also after an error."""

    def run(*arguments: object) -> object:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return forward(*arguments)

    return run


class _Run(torch.nn.Module):
    """A compiled part as a module in the graph of parts."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        super().__init__()
        self.compiled = compiled

    def __call__(self, *arguments: object) -> object:
        """Run the part without global module hooks, which must run for the user's modules alone."""
        return self.compiled(*arguments)

    def forward(self, *arguments: object) -> object:
        return self.compiled(*arguments)


def _placeholders(graph_module: torch.fx.GraphModule) -> list[str]:
    return [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]


def _must_stay_whole(graph_module: torch.fx.GraphModule, at: str, context: CaptureContext) -> bool:
    """Return whether an operation would change its meaning if parts were cut around it."""
    (n,) = (n for n in graph_module.graph.nodes if n.name == at)
    name = n.target if isinstance(n.target, str) else n.target.__name__
    graph, outside = graph_module.graph, context.grad_mode
    apart = at in _in_regions(graph, outside) and not _region_around(graph, at, outside)
    return apart or name.strip("_") in _OF_MEMORY


def _region_around(graph: torch.fx.Graph, at: str, outside: bool) -> list[str]:
    """Return the operations of the grad-mode region around one, with the calls that set the mode.

    PyTorch runs all of them. Empty if autocast is entered before, or the region does not end.
    ``outside`` is the grad mode around the graph.
    """
    region: list[str] = []
    for n in graph.nodes:
        if n.target is enter_autocast:
            return []
        changes = n.target is set_grad_enabled
        if region or (changes and n.args[0] != outside):
            region += [n.name] if n.op.startswith("call_") else []
            if changes and n.args[0] == outside:
                if at in region:
                    return region
                region = []
    return []


def within(graph: torch.fx.Graph, outside: bool) -> set[str]:
    """Return the operations whose meaning depends on a mode or transform around them.

    ``outside`` is the grad mode around the graph.
    """
    return _in_regions(graph, outside).union(*_transforms(graph))


def _in_regions(graph: torch.fx.Graph, outside: bool) -> set[str]:
    """Return the operations in grad-mode or autocast regions, with the calls that set the modes."""
    names: set[str] = set()
    gradients: Any = outside
    depth = 0
    for n in graph.nodes:
        changes = n.target is set_grad_enabled
        gradients = n.args[0] if changes else gradients
        depth += n.target is enter_autocast
        if changes or depth or gradients != outside:
            names.add(n.name)
        depth -= n.target is exit_autocast
    return names

"""Finds the operation at which a graph's values or gradients begin to differ from PyTorch's.

Runs once a difference is found: the graph is lowered again with all intermediate values as results,
for the shapes of the step that differed.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import Argument

from steep.graph.captured_graph import copy_graph
from steep.graph.compiled_graph import CompiledGraph
from steep.graph.lowered import LoweredGraph
from steep.lowering.aliasing import all_written_by, memory_of
from steep.lowering.capture_context import CaptureContext
from steep.lowering.lower import line_of
from steep.lowering.python_numbers import number_of
from steep.patching.substitution import changes_lock
from steep.torch_internals.dispatch import FakeTensorMode, TracingContext, tracing
from steep.verify.compare import Comparison, run_in_torch
from steep.verify.copies import copies_of, or_zero
from steep.verify.difference import LEAST_SCALE, Difference
from steep.verify.replay_random import Masks


@dataclasses.dataclass(frozen=True)
class Place:
    """The submodule and operator at which the first difference occurs, "" if unknown."""

    sentence: str
    module: str = ""
    operator: str = ""
    difference: Difference | None = None


def find(comparison: Comparison, incoming: Sequence[Any] | None) -> Place:
    """Return where values differ first; where gradients do, if ``incoming`` is not None.

    ``incoming`` are the gradients of the results.
    """
    enabled, dtype = comparison.autocast
    try:
        with (
            changes_lock(),
            torch.random.fork_rng(devices=[]),
            torch.set_grad_enabled(comparison.grad_mode),
            torch.autocast("cpu", dtype, enabled),
        ):
            return _find(comparison, incoming)
    except Exception as e:  # noqa: BLE001 - its text is added to the error about the difference
        text = (
            f"The place where the difference begins could not be found ({type(e).__name__}: {e})."
        )
        return Place(text[:300])


def _find(comparison: Comparison, incoming: Sequence[Any] | None) -> Place:
    graph_module, arguments = _for_these(comparison.reference, comparison.pristine)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    context = dataclasses.replace(comparison.compiled.lowered.context, fake_mode=mode)
    with tracing(TracingContext(mode)):
        _note_values(graph_module, arguments, mode)
        if incoming is None:
            return _find_value(comparison, graph_module, arguments, context)
        return _find_gradient(comparison, graph_module, arguments, incoming, context)


def _find_value(
    comparison: Comparison,
    graph_module: torch.fx.GraphModule,
    arguments: list[Any],
    context: CaptureContext,
) -> Place:
    graph = graph_module.graph
    nodes = list(graph.nodes)
    visited = {memory_of(n) for n in nodes if n.op == "placeholder"} | {None}
    candidates = []
    for n in nodes:
        if n.op.startswith("call_") and memory_of(n) not in visited:
            visited.add(memory_of(n))
            candidates.append(n)
    _set_outputs(graph_module, candidates)
    compiled = CompiledGraph(LoweredGraph(copy_graph(graph_module), arguments, context))
    copies = copies_of(arguments)
    inputs = compiled.prepare_inputs(copies)
    received = compiled.write_back_and_return(copies, compiled.run_engine(inputs))
    names = {n.name for n in candidates}
    expected, _ = run_in_torch(graph_module, copies_of(arguments), names, Masks(compiled, inputs))
    for n, mine in zip(candidates, received, strict=True):
        difference = comparison.difference(mine, expected[n.name])
        if difference is not None and difference.relative > comparison.tolerance:
            return _place(
                n, "The difference begins at a value that this operator computes.", difference
            )
    return _place_of_write(comparison, graph_module)


def _place_of_write(comparison: Comparison, graph_module: torch.fx.GraphModule) -> Place:
    """Return the operation that writes to an argument; all computed values agree."""
    graph = graph_module.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    writers = [n for n in graph.nodes if any(t in placeholders for t in all_written_by(n))]
    if not writers:  # a batch norm, which updates its running statistics
        buffers = {n for n in placeholders if not n.meta["example_value"].requires_grad}
        writers = [n for n in graph.nodes if "norm" in _name(n) and buffers & {*n.all_input_nodes}]
    if comparison.compiled.lowered.write_targets and writers:
        return _place(writers[0], "The difference is in a value that this operator writes.", None)
    return Place("The difference disappears when values between operators are returned.")


def _find_gradient(
    comparison: Comparison,
    graph_module: torch.fx.GraphModule,
    arguments: list[Any],
    incoming: Sequence[Any],
    context: CaptureContext,
) -> Place:
    """Find the operator that returns the first gradient that differs.

    A tensor of zeros is added to every operand; its gradient is the gradient that the operator
    returns for that operand.
    """
    graph = graph_module.graph
    by_name = {n.name: n for n in graph.nodes}
    results = [by_name[value.name] for value in comparison.compiled.lowered.values]
    pairs = [(n, g) for n, g in zip(results, incoming, strict=True) if g is not None]
    edges = _add_zeros(graph, context.fake_mode)
    _set_outputs(graph_module, [n for n, _ in pairs])
    examples = [zero.meta["example_value"] for _, zero in edges]
    real = [torch.zeros(e.shape, dtype=e.dtype, requires_grad=True) for e in examples]
    operands = [*arguments, *real]
    compiled = CompiledGraph(LoweredGraph(copy_graph(graph_module), operands, context))
    gradients = [g for _, g in pairs]
    operands = [*copies_of(arguments), *real]
    inputs = compiled.prepare_inputs(operands)
    results = list(compiled.write_back_and_return(operands, compiled.run_engine(inputs)))
    received = torch.autograd.grad(results, real, gradients, allow_unused=True)
    operands = [*copies_of(arguments), *real]
    _, outputs = run_in_torch(graph_module, operands, set(), Masks(compiled, inputs))
    expected = torch.autograd.grad(list(outputs), real, gradients, allow_unused=True)
    largest = max((float(g.abs().max()) for g in expected if g is not None), default=0.0)
    for (user, _), zero, mine, theirs in reversed(
        list(zip(edges, real, received, expected, strict=True))
    ):
        difference = comparison.difference(
            or_zero(mine, zero), or_zero(theirs, zero), LEAST_SCALE * largest
        )
        if difference is not None and difference.relative > comparison.tolerance:
            return _place(
                user, "The difference begins at a gradient that this operator returns.", difference
            )
    return Place("The difference disappears when gradients between operators are returned.")


def _add_zeros(
    graph: torch.fx.Graph, mode: FakeTensorMode
) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
    """Add placeholders for zeros to operands; return pairs (operation, placeholder)."""
    nodes = list(graph.nodes)
    targets = {memory_of(t) for n in nodes for t in all_written_by(n)}
    last = [n for n in nodes if n.op == "placeholder"][-1]
    edges: list[tuple[torch.fx.Node, torch.fx.Node]] = []
    for user in nodes:
        if not user.op.startswith("call_"):
            continue
        for operand in user.all_input_nodes:
            value = operand.meta.get("example_value")
            if not isinstance(value, torch.Tensor) or not value.requires_grad:
                continue
            if memory_of(operand) in targets:
                continue
            with graph.inserting_after(last):
                zero = last = graph.placeholder(f"zero_{len(edges)}")
            with mode, torch.no_grad():
                zero.meta["example_value"] = torch.zeros(value.shape, dtype=value.dtype)
            zero.meta["example_value"].requires_grad_(True)
            with graph.inserting_before(user):
                total = graph.call_function(torch.add, (operand, zero))
            with mode:
                total.meta["example_value"] = value + zero.meta["example_value"]
            user.replace_input_with(operand, total)
            edges.append((user, zero))
    return edges


# --- the graph for the arguments of one step -----------------------------------------------------


def _for_these(
    reference: torch.fx.GraphModule, arguments: Sequence[Any]
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Return the graph with its Python numbers as constants, and the remaining arguments."""
    graph_module = copy_graph(reference)
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    values = dict(zip(placeholders, arguments, strict=True))
    for node in list(graph_module.graph.nodes):
        if node in values and not isinstance(values[node], torch.Tensor):
            _replace(node, values.pop(node))
        elif node not in values and number_of(node) is not None:
            _replace(node, values[node.args[0]].item())
    return graph_module, list(values.values())


def _replace(node: torch.fx.Node, value: Argument) -> None:
    for user in list(node.users):
        user.replace_input_with(node, value)
    node.graph.erase_node(node)


def _note_values(
    graph_module: torch.fx.GraphModule, arguments: list[Any], mode: FakeTensorMode
) -> None:

    class Noting(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> object:
            value = super().run_node(n)
            n.meta["example_value"] = value
            return value

    noting = Noting(graph_module, garbage_collect_values=False)
    noting.extra_traceback = False
    with mode:
        noting.run(*[mode.from_tensor(t, static_shapes=True) for t in arguments])


def _set_outputs(graph_module: torch.fx.GraphModule, nodes: list[torch.fx.Node]) -> None:
    (end,) = (n for n in graph_module.graph.nodes if n.op == "output")
    end.args = (tuple(nodes),)
    graph_module.recompile()


# --- names ---------------------------------------------------------------------------------------


def _name(n: torch.fx.Node) -> str:
    return n.target if isinstance(n.target, str) else getattr(n.target, "__name__", str(n.target))


def _place(n: torch.fx.Node, sentence: str, difference: Difference | None) -> Place:
    source = n.args[0] if n.target is operator.getitem else None
    if isinstance(source, torch.fx.Node) and not isinstance(
        source.meta.get("example_value"), torch.Tensor
    ):
        n = source  # the operation that returns several values
    line = line_of(n)
    name = f"{_name(n)} ({line})" if line else _name(n)
    return Place(sentence, module_of(n), name, difference)


def module_of(n: torch.fx.Node) -> str:
    """Return the path of the submodule that an operation belongs to, and its class."""
    stack = n.meta.get("nn_module_stack") or {}
    if not stack:
        return "the module itself"
    path, kind = list(stack.values())[-1]
    path = re.sub(r"^L\['\w+'\]", "", path)  # the captured module itself
    path = re.sub(r"_modules\['(\w+)'\]|\[['\"]?(\w+)['\"]?\]", r".\1\2", path)
    path = re.sub(r"\.+", ".", path).strip(".")
    kind = kind if isinstance(kind, str) else kind.__name__
    return f"{path or 'the module itself'} ({kind.rpartition('.')[2]})"

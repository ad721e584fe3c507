"""Expands ``torch.func`` (``vmap``, ``grad``, ``vjp``, ``jacrev``) in captured graphs.

Each transform becomes operators.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from steep.lowering.aliasing import called_name
from steep.lowering.export_mode import export_mode
from steep.lowering.function_rewrites import REWRITES
from steep.lowering.lower import WITHIN, refusal
from steep.lowering.products import NARROWED_FUNCTIONS
from steep.patching.restore import without_transforms
from steep.patching.substitution import attribute_set
from steep.torch_internals.autograd import (
    enter_dual_level,
    exit_dual_level,
    saved_tensors_hooks_disable,
    saved_tensors_hooks_enable,
)
from steep.torch_internals.dispatch import fake_tensor_tls
from steep.torch_internals.functorch import (
    autograd_grad,
    grad_decrement_nesting,
    grad_increment_nesting,
    lazy_load_decompositions,
    predispatch_add_batch_dim,
    predispatch_remove_batch_dim,
    set_inplace_requires_grad_allowed,
    set_tensor_requires_grad,
    unwrap_for_grad,
    vmap_decrement_nesting,
    vmap_increment_nesting,
    wrap_for_grad,
)
from steep.torch_internals.fx import LazyGraphModule
from steep.torch_internals.operators import HigherOrderOperator, OpOverload, aten, schema_of
from steep.torch_internals.pytree import tree_leaves

_BEGIN, _END = vmap_increment_nesting, vmap_decrement_nesting
_CHECKS = {saved_tensors_hooks_disable, saved_tensors_hooks_enable}
_OF_GRADIENTS = {
    *(grad_increment_nesting, grad_decrement_nesting, *_CHECKS),
    *(wrap_for_grad, set_inplace_requires_grad_allowed),
    *(unwrap_for_grad, set_tensor_requires_grad),
    autograd_grad,
}
_OF_BATCHES = {
    *(_BEGIN, _END, predispatch_add_batch_dim, predispatch_remove_batch_dim),
    lazy_load_decompositions,  # of nested vmaps
}
_KNOWN = _OF_BATCHES | _OF_GRADIENTS
_LEVELS = {enter_dual_level, exit_dual_level}  # of forward mode, which is not supported
# Tracing works below autograd, where these calls do not appear or have lost their effect on
# training.
_UNSEEN = {
    *("detach", "detach_", "_get_data_attr", "requires_grad_", "_set_grad_enabled"),
    *("_enter_autocast", "_exit_autocast"),
}
_AS_THEY_ARE = {torch.stack, *NARROWED_FUNCTIONS}  # these have rewrites, but may be traced


CAPTURED_AS = "steep.captured_as"
"""Meta key of a transform's result after expansion: its name in the captured graph."""


def expand_transforms(graph: torch.fx.Graph) -> None:
    """Replace each vmap and gradient by operators, if it contains only operators.

    Raises CannotLower if one of these cannot be traced.
    """
    for region in transforms(graph):
        if any(n.target is torch.autograd.grad for n in region):
            return
        if all(is_operator(each) for each in region):
            try:
                _expand(graph, region)
            except Exception as e:  # whatever tracing raises
                raise refusal(e, region[0]) from e


def transforms(graph: torch.fx.Graph) -> list[list[torch.fx.Node]]:
    """Return the regions of function transforms, each as a list of nodes in order.

    Each outermost vmap is a region. With derivatives, one region spans from the first to the last
    node of any transform: tensors inside are wrapped, even after the level of a derivative was
    left, so a part of a graph contains all of a transform or nothing. The same holds for
    ``torch.autograd.grad``: outputs have their histories only within one part.
    """
    nodes = list(graph.nodes)
    if gradients := [n for n in nodes if n.target is torch.autograd.grad]:
        within = {m for n in gradients for m in region_of(n)}
        within |= {n for n in nodes if _is_of_transform(n)}
        places = [i for i, n in enumerate(nodes) if n in within]
        return [nodes[places[0] : places[-1] + 1]]
    if any(_is_of_transform(n) and n.target not in _OF_BATCHES | _CHECKS for n in nodes):
        places = [i for i, n in enumerate(nodes) if _is_of_transform(n)]
        return [nodes[places[0] : places[-1] + 1]]
    regions: list[list[torch.fx.Node]] = []
    depth = 0
    for n in nodes:
        if n.target is _BEGIN and not depth:
            regions.append([])
        depth += n.target is _BEGIN
        if depth:
            regions[-1].append(n)
        depth -= n.target is _END
    return regions


def path_of(slope: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the operations between inputs and outputs of a ``torch.autograd.grad``, in order.

    An input is among these if it depends on another input.
    """
    outputs, inputs = (tree_leaves(tree) for tree in _outputs_and_inputs(slope))
    after = {i for i in inputs if isinstance(i, torch.fx.Node)}
    path = []
    for n in slope.graph.nodes:
        if n is slope:
            break
        if not after.isdisjoint(n.all_input_nodes):
            after.add(n)
            path.append(n)
    ancestors = {n for n in outputs if isinstance(n, torch.fx.Node)}
    for n in reversed(path):
        if n in ancestors:
            ancestors.update(n.all_input_nodes)
    return [n for n in path if n in ancestors]


def region_of(slope: torch.fx.Node) -> list[torch.fx.Node]:
    """Return all nodes from the first one of ``path_of`` to the call of ``torch.autograd.grad``."""
    nodes = list(slope.graph.nodes)
    first = path_of(slope)[:1] or [slope]
    return nodes[nodes.index(first[0]) : nodes.index(slope) + 1]


def _outputs_and_inputs(slope: torch.fx.Node) -> tuple[Any, Any]:
    arguments = inspect.signature(torch.autograd.grad).bind(*slope.args, **slope.kwargs).arguments
    return arguments["outputs"], arguments["inputs"]


def in_pytorch(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    """Return a function that runs a captured graph in PyTorch, and leaves transforms on errors."""
    LazyGraphModule.force_recompile(graph_module)  # a lazy forward would call the whole module once
    forward: Callable[..., Any] = graph_module.forward
    if not transforms(graph_module.graph):
        return forward

    def run(*arguments: object) -> object:
        with without_transforms():
            return forward(*arguments)

    return run


def _is_of_transform(n: torch.fx.Node) -> bool:
    if n.target is operator.getitem:  # takes one of several derivatives
        return n.args[0].target is autograd_grad
    if n.target in _KNOWN:
        return True
    module = getattr(n.target, "__module__", None) or ""
    return module.startswith(("torch._functorch", "torch._C._functorch")) or n.target in _LEVELS


def is_operator(n: torch.fx.Node) -> bool:
    """Return whether a node is an operator, or belongs to a supported transform."""
    if n.target in _KNOWN:
        return True
    name = called_name(n)
    module = getattr(n.target, "__module__", None) or ""
    return (
        n.op.startswith("call_")
        and name not in _UNSEEN
        and (n.target not in REWRITES or n.target in _AS_THEY_ARE)
        and not isinstance(n.target, HigherOrderOperator)
        and not module.startswith("torch._functorch")
    )


def _expand(graph: torch.fx.Graph, region: list[torch.fx.Node]) -> None:
    within = set(region)
    operands = [*dict.fromkeys(i for n in region for i in n.all_input_nodes if i not in within)]
    results = [n for n in region if any(user not in within for user in n.users)]
    inner = torch.fx.Graph()
    copies = {n: inner.placeholder(n.name) for n in operands}
    for n in region:
        if n.target not in _CHECKS:
            copies[n] = inner.node_copy(n, lambda i: copies[i])
    inner.output([copies[n] for n in results])
    module = torch.fx.GraphModule(torch.nn.Module(), inner)
    values = insert_call(graph, module.forward, operands, region[0], region[-1])
    for n, value in zip(results, values, strict=True):
        replace_node(n, value)
    for n in reversed(region):
        graph.erase_node(n)


def insert_call(
    graph: torch.fx.Graph,
    function: Callable[..., Any],
    operands: list[torch.fx.Node],
    before: torch.fx.Node,
    last: torch.fx.Node,
) -> list[torch.fx.Node]:
    """Insert the operators that a function traces to before a node; return its results.

    Args:
        graph: the graph to insert into.
        function: a function of the values of ``operands``.
        operands: the nodes whose values the function gets.
        before: the node before which operators are inserted; they are recorded as ``WITHIN`` it.
        last: the node whose stack trace they get.
    """
    parts = _trace(function, [n.meta["example_value"] for n in operands])
    owner = graph.owning_module
    placeholders = [n for n in parts.graph.nodes if n.op == "placeholder"]
    values: dict[torch.fx.Node, Any] = dict(zip(placeholders, operands, strict=True))
    (end,) = (n for n in parts.graph.nodes if n.op == "output")
    with graph.inserting_before(before):
        for n in parts.graph.nodes:
            if n in values or n is end:
                continue
            if n.op == "get_attr":
                constant = f"{before.name}_{n.target}"
                owner.register_buffer(constant, getattr(parts, n.target))
                values[n] = graph.get_attr(constant)
                continue
            values[n] = copy = graph.node_copy(n, lambda i: values[i])
            copy.meta = {"example_value": n.meta.get("val"), WITHIN: before.name}
            copy.meta["stack_trace"] = last.meta.get("stack_trace")
    return [values[v] for v in end.args[0]]


def replace_node(n: torch.fx.Node, value: torch.fx.Node) -> None:
    """Replace a node by a value, which takes over its name and autograd history."""
    value.meta["example_value"] = n.meta["example_value"]
    value.meta[CAPTURED_AS] = n.name
    n.replace_all_uses_with(value)


def _trace(function: Callable[..., Any], examples: list[Any]) -> torch.fx.GraphModule:
    """Trace a function of values to a graph of operators without mutations."""

    def run(*tensors: torch.Tensor) -> object:  # make_fx would count a bound method's self
        return function(*tensors)

    # constants are not fake tensors
    constants = attribute_set(fake_tensor_tls, "allow_non_fake_inputs_override", True)
    with export_mode(), without_transforms(), constants:
        graph_module = make_fx(run)(*examples)
        if any(map(_writes, graph_module.graph.nodes)):  # a bias is added in place
            graph_module = make_fx(functionalize(graph_module))(*examples)
    for n in list(graph_module.graph.nodes):
        if n.target is aten.detach.default:  # autograd detaches what it saves
            n.replace_all_uses_with(n.args[0])
            graph_module.graph.erase_node(n)
        if _writes(n):
            raise NotImplementedError("a tensor is written within vmap")
    return graph_module


def _writes(n: torch.fx.Node) -> bool:
    return isinstance(n.target, OpOverload) and schema_of(n.target).is_mutable

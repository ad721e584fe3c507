"""Expands ``torch.autograd.grad`` within forward into operators of the captured graph.

The operations between inputs and outputs are computed a second time, with their derivative. The
engine merges nodes that compute the same.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator

import torch

from steep.lowering.aliasing import all_written_by
from steep.lowering.func_transforms import (
    insert_call,
    is_operator,
    path_of,
    region_of,
    replace_node,
)
from steep.lowering.lower import CannotLower, cannot_lower, refusal
from steep.lowering.ops.autograd_function import Interpreter
from steep.patching.dynamo_settings import AUTOGRAD_GRAD, values_of
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    InstructionTranslatorBase,
    TorchInGraphFunctionVariable as _Function,
    Unsupported,
    VariableTracker,
    config,
)
from steep.torch_internals.pytree import tree_leaves

CALL_FUNCTION = Substitution(
    _Function,
    "call_function",
    "`torch.autograd.grad` within forward becomes part of the graph.",
    order=3,
)


@replaces(CALL_FUNCTION)
def trace_autograd_grad() -> Iterator[None]:
    """Trace ``torch.autograd.grad`` in forward as a part of the graph.

    If Dynamo cannot trace the call, PyTorch runs the whole function: after a graph break the
    outputs would have lost their history.
    """
    call = _Function.call_function

    def calling(
        self: VariableTracker, tx: InstructionTranslatorBase, *arguments: object
    ) -> VariableTracker:
        if self.value is not torch.autograd.grad:
            return call(self, tx, *arguments)
        try:
            with config.patch(**values_of(AUTOGRAD_GRAD)):
                return call(self, tx, *arguments)
        except Unsupported as e:
            raise Unsupported(e.msg, e.gb_type, True, real_stack=e.real_stack) from e

    with substitute({CALL_FUNCTION: calling}):
        yield


def expand_autograd_grad(graph: torch.fx.Graph) -> None:
    """Replace each ``torch.autograd.grad`` by operators. Raises CannotLower."""
    calls = [n for n in graph.nodes if n.target is torch.autograd.grad]
    for n in calls:
        try:
            _expand(graph, n)
        except CannotLower:
            raise
        except Exception as e:  # tracing may raise any error
            raise refusal(e, n) from e
    for n in list(graph.nodes) if calls else ():
        # On a tensor that forward made for this: no other code can ask for its gradient.
        if n.target == "requires_grad_" and n.args[0].op != "placeholder":
            n.replace_all_uses_with(n.args[0])
            graph.erase_node(n)


def _expand(graph: torch.fx.Graph, n: torch.fx.Node) -> None:
    call = inspect.signature(torch.autograd.grad).bind(*n.args, **n.kwargs)
    call.apply_defaults()
    options = call.arguments
    inputs = [i for i in tree_leaves(options["inputs"]) if isinstance(i, torch.fx.Node)]
    path = path_of(n)
    for m in region_of(n)[:-1]:
        if not is_operator(m) or any(True for _ in all_written_by(m)):
            reason = f"torch.autograd.grad differentiates past {m.name}"
            raise cannot_lower(f"{reason}, which writes in place or is no operator", n)
    if any(i in path for i in inputs) or options["is_grads_batched"]:
        raise cannot_lower("an input of torch.autograd.grad depends on another input", n)
    inside = [*path, *inputs]
    outside = (i for m in [*path, n] for i in m.all_input_nodes if i not in inside)
    operands = [*dict.fromkeys([*inputs, *outside])]
    inner = torch.fx.Graph()
    copies = {i: inner.placeholder(i.name) for i in operands}
    for m in path:
        copies[m] = inner.node_copy(m, copies.__getitem__)
    outputs, seeds = torch.fx.map_arg(
        (options["outputs"], options["grad_outputs"]), copies.__getitem__
    )
    inner.output((outputs, seeds))
    module = torch.fx.GraphModule(torch.nn.Module(), inner)

    def derive(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [v.detach().requires_grad_() for v in values[: len(inputs)]]
        y, dy = Interpreter(module).run(*leaves, *values[len(inputs) :])
        unused = bool(options["allow_unused"] or options["materialize_grads"])
        gradients: tuple[torch.Tensor, ...] = torch.autograd.grad(
            y, leaves, dy, create_graph=True, allow_unused=unused
        )
        if any(each is None for each in gradients):
            raise NotImplementedError(
                "the output of torch.autograd.grad does not depend on an input"
            )
        return gradients

    slopes = insert_call(graph, derive, operands, n, n)
    if any(map(_draws, graph.nodes)):
        reason = "torch.autograd.grad differentiates an operation that draws random numbers"
        raise cannot_lower(reason, n)
    for user in list(n.users):
        if user.target is not operator.getitem:
            raise cannot_lower("the tuple that torch.autograd.grad returns is used as a whole", n)
        value = slopes[user.args[1]]
        if not options["create_graph"]:
            with graph.inserting_before(user):
                value = graph.call_method("detach", (value,))
        elif value in operands or value.meta.get("steep.captured_as"):
            with graph.inserting_before(user):
                value = graph.call_method("clone", (value,))
        replace_node(user, value)
        graph.erase_node(user)
    graph.erase_node(n)


def _draws(n: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())

"""``torch.vmap`` within a captured graph, written out in operators on whole batches."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch import predispatch
from torch.fx.experimental.proxy_tensor import make_fx

from steep.lowering import WITHIN, refusal
from steep.quiet import quiet, transforms_left
from steep.restated import RESTATED

_BEGIN, _END = predispatch._vmap_increment_nesting, predispatch._vmap_decrement_nesting
_KNOWN = {
    *(_BEGIN, _END, predispatch._add_batch_dim, predispatch._remove_batch_dim),
    predispatch.lazy_load_decompositions,  # of a vmap within another
}
# Tracing goes below autograd, where these are not seen, or have lost what training asks for.
_UNSEEN = {
    *("detach", "detach_", "_get_data_attr", "requires_grad_", "_set_grad_enabled"),
    *("_enter_autocast", "_exit_autocast"),
}


def write_out(graph: torch.fx.Graph) -> None:
    """Put operators on batches into the place of each vmap that has only operators within.

    Raises CannotLower where one of these cannot be traced.
    """
    region: list[torch.fx.Node] = []
    depth = 0
    for n in list(graph.nodes):
        depth += n.target is _BEGIN
        region += [n] if depth else []
        depth -= n.target is _END
        if not depth and region:
            if all(_is_operator(each) for each in region):
                try:
                    _write_out(graph, region)
                except Exception as e:  # whatever tracing raises
                    raise refusal(e, region[0]) from e
            region = []


def _is_operator(n: torch.fx.Node) -> bool:
    if n.target in _KNOWN:
        return True
    name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
    module = getattr(n.target, "__module__", None) or ""
    return (
        n.op.startswith("call_")
        and name not in _UNSEEN
        and (n.target not in RESTATED or n.target is torch.stack)
        and not isinstance(n.target, torch._ops.HigherOrderOperator)
        and not module.startswith("torch._functorch")
    )


def _write_out(graph: torch.fx.Graph, region: list[torch.fx.Node]) -> None:
    within = set(region)
    given = [*dict.fromkeys(i for n in region for i in n.all_input_nodes if i not in within)]
    results = [n for n in region if any(user not in within for user in n.users)]
    traced = _traced(region, given, results)
    placeholders = [n for n in traced.nodes if n.op == "placeholder"]
    values: dict[torch.fx.Node, Any] = dict(zip(placeholders, given, strict=True))
    (end,) = (n for n in traced.nodes if n.op == "output")
    with graph.inserting_before(region[0]):
        for n in traced.nodes:
            if n in values or n is end:
                continue
            values[n] = copy = graph.node_copy(n, lambda i: values[i])
            copy.meta = {"example_value": n.meta.get("val"), WITHIN: region[0].name}
            copy.meta["stack_trace"] = region[-1].meta.get("stack_trace")
    for n, value in zip(results, (values[v] for v in end.args[0]), strict=True):
        value.meta["example_value"] = n.meta["example_value"]  # with its history
        n.replace_all_uses_with(value)
    for n in reversed(region):
        graph.erase_node(n)


def _traced(
    region: list[torch.fx.Node], given: list[torch.fx.Node], results: list[torch.fx.Node]
) -> torch.fx.Graph:
    """Return a region's operators on batches, as a graph of ``given`` that gives ``results``."""
    inner = torch.fx.Graph()
    copies = {n: inner.placeholder(n.name) for n in given}
    for n in region:
        copies[n] = inner.node_copy(n, lambda i: copies[i])
    inner.output([copies[n] for n in results])
    module = torch.fx.GraphModule(torch.nn.Module(), inner)

    def run(*tensors: Any) -> Any:  # a bound method has an argument more for make_fx
        return module.forward(*tensors)

    with quiet(), transforms_left():
        examples = [n.meta["example_value"] for n in given]
        traced = make_fx(run)(*examples).graph
    for n in traced.nodes:
        if n.op == "get_attr":
            raise NotImplementedError("a constant within vmap")
        schema = getattr(n.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise NotImplementedError("a tensor is written within vmap")
    return traced

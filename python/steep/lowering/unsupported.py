"""What a captured graph can neither be given nor give."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from steep.lowering.lower import refusal


def refuse_complex(graph: torch.fx.Graph, computed: Sequence[torch.fx.Node]) -> None:
    """Raise CannotLower where the engine would be given complex numbers, or give them.

    ``computed`` are its results; the exporter has other extents for complex ones.
    """
    needed: set[torch.fx.Node] = set()
    wanted = [*computed, *(n for n in graph.nodes if not n.users and n.op.startswith("call_"))]
    while wanted:
        if (n := wanted.pop()) not in needed:
            needed.add(n)
            wanted += n.all_input_nodes
    given = [n for n in graph.nodes if n.op == "placeholder" and _is_complex(n)]
    at = [user for n in given for user in _readers(n) if user in needed]
    at += [n for n in computed if _is_complex(n)]
    if at:
        refused = [refusal(RuntimeError("complex numbers come in or out"), n) for n in at]
        refused[0].others = refused[1:]
        raise refused[0]


def _readers(n: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the operations that read a tensor, or an extent of it."""
    extents = [u for u in n.users if u.target is torch.ops.aten.sym_size.int]
    readers = [u for u in n.users if u not in extents] + [r for u in extents for r in u.users]
    return [r for r in dict.fromkeys(readers) if r.op != "output"]


def _is_complex(n: torch.fx.Node) -> bool:
    value = n.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.is_complex()


def refuse_histories(graph: torch.fx.Graph, computed: Sequence[torch.fx.Node]) -> None:
    """Raise CannotLower where a gradient is asked for that a call here could not give."""
    for n in graph.nodes:
        if n.target == "requires_grad_" and n.args[0].op == "placeholder":
            raise refusal(RuntimeError("what is given is to have a gradient"), n)
    if torch.is_grad_enabled():
        return
    for n in computed:
        value = n.meta["example_value"]
        if isinstance(value, torch.Tensor) and value.requires_grad:
            what = "forward enables gradients, which its caller disables"
            raise refusal(RuntimeError(what), n)


def refuse_sparse(graph: torch.fx.Graph) -> None:
    """Raise CannotLower where the gradient of a table holds only the rows that were read.

    The engine's are whole, which optimizers for sparse gradients do not take.
    """
    refused = [
        refusal(RuntimeError("the gradient of a table is to be sparse"), n)
        for n in graph.nodes
        if n.target in (F.embedding, F.embedding_bag) and _gives_sparse(n)
    ]
    if refused:
        refused[0].others = refused[1:]
        raise refused[0]


def _gives_sparse(n: torch.fx.Node) -> bool:
    given = inspect.signature(n.target).bind(*n.args, **n.kwargs).arguments  # type: ignore[arg-type]
    return bool(given.get("sparse")) and given["weight"].meta["example_value"].requires_grad

"""Branches on values of the arguments: the outcome becomes a guard.

``if mask.any():`` would break a graph. If the condition depends on arguments and buffers only,
PyTorch computes it at capture, and the graph follows that side. At each later call a guard computes
it again. If the outcome differs, another graph is made.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from steep.dynamo.patches.instructions import Jump, jumping, tables_of_steps
from steep.lowering.aliasing import all_written_by, memory_of, shares
from steep.patching.substitution import replaces
from steep.torch_internals.autograd import DisableTorchFunction
from steep.torch_internals.dispatch import unset_fake_temporarily
from steep.torch_internals.dynamo import (
    GlobalStateSource,
    Guard,
    GuardBuilder,
    Instruction,
    InstructionTranslatorBase,
    SymNodeVariable,
    VariableTracker,
    get_closure_vars,
)

log = logging.getLogger("steep")

_MOST = 64  # most operations of one condition: the guard runs them at every call


class Undecided(Exception):
    """The guard cannot compute a condition before the call."""


class Condition:
    """The condition of a branch, as a function of arguments and buffers.

    Args:
        node: the condition's node in the graph that Dynamo is making.

    Raises Undecided: more than ``_MOST`` operations lead to the node; it depends on a parameter, or
    on anything but operations, arguments and buffers; or one of the operations writes to memory
    that another argument may share.
    """

    def __init__(self, node: torch.fx.Node) -> None:
        ancestors = _all_before(node)
        targets = {memory_of(t) for n in ancestors for t in all_written_by(n)}
        self.sources = []
        self.is_written = []  # for each source, whether an operation writes to it
        self.graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for n in ancestors:
            if n.op == "placeholder":
                argument = n.meta.get("grapharg")
                if argument is None or argument.source is None or argument.pass_arg_as_tensor:
                    raise Undecided
                if isinstance(n.meta["example_value"], torch.nn.Parameter):
                    raise Undecided
                self.sources.append(argument.source)
                self.is_written.append(memory_of(n) is not None and memory_of(n) in targets)
            elif n.op not in ("call_function", "call_method"):
                raise Undecided
            copies[n] = self.graph.node_copy(n, copies.__getitem__)
            copies[n].meta = {}
        self.graph.output(copies[node])
        self.run = torch.fx.GraphModule(torch.nn.Module(), self.graph).forward

    def truth(self, global_scope: dict[str, Any], local_scope: Mapping[str, object]) -> bool:
        """Compute the condition from the frame's variables, without changing them.

        Raises Undecided: a written argument shares memory with another, or an operation draws
        random numbers.
        """
        scope, closures = {"L": local_scope, "G": global_scope}, get_closure_vars()
        values = [s.get_value(scope, closures, {}) for s in self.sources]
        copies = [
            g.clone() if copies_it else g
            for g, copies_it in zip(values, self.is_written, strict=True)
        ]
        if shares(values, {i for i, copies_it in enumerate(self.is_written) if copies_it}):
            raise Undecided
        before = torch.get_rng_state()
        with torch.no_grad(), unset_fake_temporarily(), DisableTorchFunction():
            result = bool(self.run(*copies))
        if not torch.equal(torch.get_rng_state(), before):
            torch.set_rng_state(before)
            raise Undecided
        return result


def _all_before(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the nodes that a node depends on, with writes to their memory, and the node itself."""
    earlier = []
    for n in node.graph.nodes:
        earlier.append(n)
        if n is node:
            break
    ancestors: set[torch.fx.Node] = set()
    stack = [node]
    while stack:
        while stack:
            if (n := stack.pop()) not in ancestors:
                ancestors.add(n)
                stack += n.all_input_nodes
        if len(ancestors) > _MOST:
            raise Undecided
        memories = {memory_of(n) for n in ancestors} - {None}
        writes = [(n, t) for n in earlier if n not in ancestors for t in all_written_by(n)]
        stack = [n for n, t in writes if memory_of(t) in memories]
    return [n for n in earlier if n in ancestors]


# --- while Dynamo follows the code ---------------------------------------------------------------


JUMPS = tables_of_steps(
    "A branch on a tensor cuts the graph; where the arguments decide, its outcome is a guard.",
    order=2,
)


@replaces(*JUMPS.values())
def branches() -> Iterator[None]:
    """Trace a branch on values of the arguments without a graph break."""
    with jumping(JUMPS, _or_decide):
        yield


def _or_decide(jump: Jump, jumps_on: bool) -> Jump:
    def step(tx: InstructionTranslatorBase, inst: Instruction) -> None:
        truth = _decide(tx, tx.stack[-1])
        if truth is None:
            jump(tx, inst)
            return
        tx.pop()
        if truth is jumps_on:
            tx.jump(inst)

    return step


def _decide(tx: InstructionTranslatorBase, value: VariableTracker) -> bool | None:
    """Return the present truth of a value, and add a guard; None if it cannot be computed."""
    if not _depends_on_values(value) or tx.output.current_tracer.parent is not None:
        return None
    place = f"{tx.f_code.co_filename}:{tx.lineno}"
    scopes = tx.output.global_scope, tx.output.local_scope
    try:
        condition = Condition(value.as_proxy().node)
        truth = condition.truth(*scopes)
    except Undecided:
        return None
    except Exception as e:  # noqa: BLE001 - any operation of forward may raise, and runs early here
        log.debug("the branch at %s is left to Dynamo: %s: %s", place, type(e).__name__, e)
        return None
    guard = functools.partial(_guard, condition, truth, place)
    tx.output.guards.add(Guard(GlobalStateSource(), guard))
    return truth


def _depends_on_values(value: VariableTracker) -> bool:
    if isinstance(value, SymNodeVariable):
        number = value.sym_num
        return hasattr(number, "node") and bool(free_unbacked_symbols(number.node.expr))
    return bool(value.is_tensor())


def _guard(condition: Condition, truth: bool, place: str, builder: GuardBuilder, _: Guard) -> None:
    global_scope = builder.scope["G"]

    def holds(local_scope: Mapping[str, object]) -> bool:
        try:
            return condition.truth(global_scope, local_scope) is truth
        except Exception as e:  # noqa: BLE001 - any operation may raise; then another graph is made
            log.debug("%s cannot be asked: %s: %s", text, type(e).__name__, e)
            return False

    text = f"the condition at {place} is {truth}"
    builder.guard_manager.root.add_epilogue_lambda_guard(holds, [text], None)

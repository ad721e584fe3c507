"""Branches that only raise: Dynamo writes a call of ``raise_where`` into the graph.

``if x.isnan().any(): raise ValueError("…")`` would break the graph otherwise.
"""

from __future__ import annotations

import builtins
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import torch

from steep.dynamo.patches.instructions import Jump, jumping, tables_of_steps
from steep.graph.raise_checks import raise_where
from steep.lowering.aliasing import all_written_by, memory_of
from steep.patching.substitution import replaces
from steep.torch_internals.dynamo import (
    AttributeMutationNew,
    BuiltinVariable,
    ExceptionVariable,
    Instruction,
    InstructionTranslatorBase,
    OutputGraph,
    ValueMutationNew,
    VariableTracker,
)

log = logging.getLogger("steep")


JUMPS = tables_of_steps(
    "A branch on a tensor cuts the graph; one that does nothing but raise is a check in the graph.",
    order=3,  # before value_branches.py, which would make a graph for the error
)


@replaces(*JUMPS.values())
def raise_branches() -> Iterator[None]:
    """Trace a branch on a tensor without a graph break if one side only raises an error."""
    with jumping(JUMPS, _or_check):
        yield


def _or_check(jump: Jump, jumps_on: bool) -> Jump:
    def step(tx: InstructionTranslatorBase, inst: Instruction) -> None:
        if not _may_be_checked(tx):
            jump(tx, inst)
            return
        follows, target = tx.instruction_pointer, tx.indexof[inst.target]
        for start, truth in ((follows, not jumps_on), (target, jumps_on)):
            error = _find_error(tx, start)
            if error is not None:
                arguments = (tx.pop().as_proxy(), truth, *error)
                tx.output.create_proxy("call_function", raise_where, arguments, {})
                if start == follows:
                    tx.jump(inst)
                return
        jump(tx, inst)

    return step


def _may_be_checked(tx: InstructionTranslatorBase) -> bool:
    """Return whether a branch tests one scalar tensor, and no code of forward catches the error."""
    value = tx.stack[-1]
    if not value.is_tensor() or tx.output.current_tracer.parent is not None:
        return False
    example = value.as_proxy().node.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or example.ndim or _has_written(tx.output):
        return False
    frame = tx
    while frame is not None:
        if frame.block_stack or frame.current_instruction.exn_tab_entry is not None:
            return False
        frame = frame.parent
    return True


def _has_written(output: OutputGraph) -> bool:
    """Return whether forward changed earlier state: an error of the graph would undo the change."""
    effects = output.side_effects
    variables = [*effects.store_attr_mutations, *effects.id_to_variable.values()]
    if any(effects.is_modified(v) for v in variables if not _is_new(v)):
        return True
    nodes = output.graph.nodes
    memory = {memory_of(n) for n in nodes if n.op == "placeholder"} - {None}
    return any(memory_of(target) in memory for n in nodes for target in all_written_by(n))


def _is_new(v: VariableTracker) -> bool:
    return isinstance(v.mutation_type, (AttributeMutationNew, ValueMutationNew))


_CALLS = {"CALL", "CALL_FUNCTION"}
_STEPS = {
    *("LOAD_ASSERTION_ERROR", "LOAD_ATTR", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL"),
    *("BUILD_STRING", "NOP", "PRECALL", "PUSH_NULL", *_CALLS),
}
_OF_CONSTANTS = {"BINARY_OP": 2, "BINARY_MODULO": 2, "FORMAT_SIMPLE": 1, "FORMAT_VALUE": 1}
_LONGEST = 64  # most instructions of a side that are examined


def _find_error(tx: InstructionTranslatorBase, start: int) -> tuple[str, ...] | None:
    """Return class and message of the error that the code at ``start`` raises, if it only raises.

    None if the code may do more.
    """
    block = _block(tx.instructions[start : start + _LONGEST])
    before = list(tx.stack), tx.instruction_pointer, tx.current_instruction
    try:
        for i, inst in enumerate(block):
            operands = tx.stack[len(tx.stack) - _OF_CONSTANTS.get(inst.opname, 0) :]
            constant = all(v.is_python_constant() for v in operands)
            if not constant or (inst.opname in _CALLS and not _makes_an_error(tx.stack, inst.arg)):
                return None
            tx.current_instruction, tx.instruction_pointer = inst, start + i + 1
            tx.dispatch_table[inst.opcode](tx, inst)
        return _kind_and_message(tx.stack[-1]) if block else None
    except Exception as e:  # noqa: BLE001 - Dynamo has no single class of such errors
        log.debug("a branch that may raise is left to Dynamo: %s: %s", type(e).__name__, e)
        return None
    finally:
        tx.stack[:], tx.instruction_pointer, tx.current_instruction = before


def _block(instructions: list[Instruction]) -> list[Instruction]:
    """Return the instructions before the ``raise``; none if they may do anything else."""
    block = [*itertools.takewhile(lambda i: i.opname != "RAISE_VARARGS", instructions)]
    if len(block) == len(instructions) or instructions[len(block)].arg != 1:  # 2: raise … from …
        return []
    is_simple = all(i.opname in _STEPS or i.opname in _OF_CONSTANTS for i in block)
    # an earlier call would run user code to make the message
    return block if is_simple and not any(i.opname in _CALLS for i in block[:-1]) else []


def _makes_an_error(stack: list[Any], count: int) -> bool:
    """Return whether a call with ``count`` arguments calls the class of a built-in error."""
    # one of the two positions at which Python's versions put the callable
    callables = stack[len(stack) - count - 2 : len(stack) - count]
    return any(isinstance(v, BuiltinVariable) and _is_error(v.fn) for v in callables)


def _is_error(kind: object) -> bool:
    if not isinstance(kind, type):
        return False
    return issubclass(kind, Exception) and getattr(builtins, kind.__name__, None) is kind


def _kind_and_message(error: VariableTracker) -> tuple[str, ...] | None:
    kind, message = error, []
    if isinstance(error, ExceptionVariable):
        kind, message = error.exc_type, error.args
    elif isinstance(error, BuiltinVariable):
        kind = error.fn
    if not _is_error(kind):
        return None
    texts = tuple(m.as_python_constant() for m in message)
    return (kind.__name__, *texts) if all(isinstance(m, str) for m in texts) else None

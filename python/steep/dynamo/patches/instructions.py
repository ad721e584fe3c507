"""Replaces Dynamo's handlers of Python instructions, such as conditional jumps."""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from steep.patching.substitution import Substitution, substitute
from steep.torch_internals.dynamo import (
    InliningInstructionTranslator,
    Instruction,
    InstructionTranslator,
    InstructionTranslatorBase,
)

Translator = type[InstructionTranslatorBase]
Step = Callable[[InstructionTranslatorBase, Instruction], Any]
"""Dynamo's handler of an instruction; its arguments are the translator and the instruction."""
Jump = Callable[[InstructionTranslatorBase, Instruction], None]
"""The handler of a conditional jump; the tested value is on top of the translator's stack."""

_NAMES = ("POP_JUMP_FORWARD_IF_", "POP_JUMP_BACKWARD_IF_", "POP_JUMP_IF_")


def tables_of_steps(why: str, order: int) -> dict[Translator, Substitution]:
    """Declare replacements of the tables in which Dynamo finds the handler of an instruction."""
    return {
        translator: Substitution(translator, "dispatch_table", why, order=order)
        for translator in (InstructionTranslator, InliningInstructionTranslator)
    }


@contextlib.contextmanager
def jumping(
    tables_of: Mapping[Translator, Substitution], instead: Callable[[Jump, bool], Jump]
) -> Iterator[None]:
    """Replace the handler of each conditional jump by ``instead(jump, on)``.

    ``jump`` is the present handler, and ``on`` is the truth value on which it jumps. The
    replacement that was entered last is called first.
    """
    steps: dict[str, Callable[[Step], Step]] = {
        f"{name}{str(on).upper()}": lambda jump, on=on: instead(jump, on)  # type: ignore[misc]
        for on in (True, False)
        for name in _NAMES
    }
    with stepping(tables_of, steps):
        yield


@contextlib.contextmanager
def stepping(
    tables_of: Mapping[Translator, Substitution], steps: Mapping[str, Callable[[Step], Step]]
) -> Iterator[None]:
    """Replace handlers: ``steps`` maps an instruction to a function of the present handler."""
    tables = {}
    for translator, substitution in tables_of.items():
        table = tables[substitution] = list(translator.dispatch_table)
        for name, made_of in steps.items():
            code = dis.opmap.get(name)  # None where this Python has no such instruction
            if code is not None and table[code] is not None:
                table[code] = made_of(table[code])
    with substitute(tables):
        yield

"""Where Dynamo follows the code: what it does at a conditional jump."""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Callable, Iterator
from typing import Any

from torch._dynamo.symbolic_convert import InliningInstructionTranslator, InstructionTranslator

from steep.patching.substitution import Substitution, substituted

_WHY = "A conditional jump on a tensor cuts the graph; the branches that a graph can hold do not."
JUMPS = {
    translator: Substitution(translator, "dispatch_table", _WHY)
    for translator in (InstructionTranslator, InliningInstructionTranslator)
}

Jump = Callable[[Any, Any], None]
"""Of Dynamo's translator and an instruction: the value that is asked is on top of the stack."""

_NAMES = ("POP_JUMP_FORWARD_IF_", "POP_JUMP_BACKWARD_IF_", "POP_JUMP_IF_")


@contextlib.contextmanager
def jumping(instead: Callable[[Jump, bool], Jump]) -> Iterator[None]:
    """Within, each conditional jump is ``instead`` of what it is around, and the truth it jumps on.

    What is entered last is asked first.
    """
    tables = {}
    for translator, substitution in JUMPS.items():
        table = tables[substitution] = list(translator.dispatch_table)
        for on in (True, False):
            for name in _NAMES:
                code = dis.opmap.get(f"{name}{str(on).upper()}")
                if code is not None and table[code] is not None:
                    table[code] = instead(table[code], on)
    with substituted(tables):
        yield

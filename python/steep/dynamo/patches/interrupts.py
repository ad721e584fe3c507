"""Where Dynamo follows the code: Ctrl-C ends it at a call."""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Callable, Iterator
from typing import Any

from torch._dynamo.symbolic_convert import InliningInstructionTranslator, InstructionTranslator

from steep.patching.signals import deliver_signals
from steep.patching.substitution import Substitution, substituted

_WHY = "Ctrl-C waits while Dynamo changes PyTorch; between two instructions it has changed nothing."
CALLS = {
    translator: Substitution(translator, "dispatch_table", _WHY)
    for translator in (InstructionTranslator, InliningInstructionTranslator)
}


@contextlib.contextmanager
def interruptible_calls() -> Iterator[None]:
    """Within, Dynamo calls the handlers of signals that wait before it follows a call."""
    codes = [code for name, code in dis.opmap.items() if name.startswith("CALL")]
    tables = {}
    for translator, substitution in CALLS.items():
        table = tables[substitution] = list(translator.dispatch_table)
        for code in codes:
            if table[code] is not None:
                table[code] = _delivering(table[code])
    with substituted(tables):
        yield


def _delivering(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def deliver_and_step(translator: Any, instruction: Any) -> Any:
        deliver_signals()
        return step(translator, instruction)

    return deliver_and_step

"""Lets Ctrl-C interrupt a capture, between two instructions."""

from __future__ import annotations

import dis
from collections.abc import Iterator

from steep.dynamo.patches.instructions import Step, stepping, tables_of_steps
from steep.patching.signals import deliver_signals
from steep.patching.substitution import replaces
from steep.torch_internals.dynamo import Instruction, InstructionTranslatorBase

CALLS = tables_of_steps(
    "Ctrl-C waits while Dynamo changes PyTorch; between two instructions it has changed nothing.",
    order=1,
)


@replaces(*CALLS.values())
def interruptible_calls() -> Iterator[None]:
    """Run the handlers of pending signals before Dynamo traces each call."""
    calls = [name for name in dis.opmap if name.startswith("CALL")]
    with stepping(CALLS, dict.fromkeys(calls, _delivering)):
        yield


def _delivering(step: Step) -> Step:
    def deliver_and_step(translator: InstructionTranslatorBase, instruction: Instruction) -> object:
        deliver_signals()
        return step(translator, instruction)

    return deliver_and_step

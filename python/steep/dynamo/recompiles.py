"""How often functions are captured again, why, and when to stop.

A function is captured again when a guard of its graphs fails. Usually this ends: a value that has
changed once becomes an input. Some values cannot be inputs (the length of a growing list, a number
in a string) and would cause a new graph at each call.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import logging
import re
from types import CodeType, FrameType

import torch

from steep.dynamo.patches.layer_frames import is_layer
from steep.errors import ModelError
from steep.torch_internals.dynamo import CacheEntry, get_guard_fail_reason

log = logging.getLogger("steep")

MOST_GRAPHS = 64
"""Most graphs of one function with one module."""

MOST_FOR_A_NUMBER = 8
"""Most graphs for different values of one number, or for a length that only grows."""

SAID_AFTER = 3


@dataclasses.dataclass(frozen=True)
class Reason:
    """A guard that failed, such as ``s.step == 4``, and its origin as FILE:LINE."""

    condition: str
    line: str

    @property
    def of_number(self) -> tuple[str, float] | None:
        """The expression and the number that the guard compares it with; None for other guards."""
        parts = re.fullmatch(r"(.+) == (-?[\d.]+(?:e[-+]?\d+)?)", self.condition)
        return (parts[1], float(parts[2])) if parts else None

    @property
    def subject(self) -> str:
        """The expression that the guard tests."""
        return self.of_number[0] if self.of_number else self.condition

    @property
    def remedy(self) -> str:
        """What to write in the code instead."""
        if self.condition.startswith(("len(", "not ")):
            return (
                "keep what grows in a tensor of a fixed shape (register_buffer), or do it outside"
            )
        if self.of_number:
            return f"make {self.subject} a tensor (register_buffer), or calculate with tensors"
        return "pass as a tensor what changes from call to call"

    def __str__(self) -> str:
        return f"the guard `{self.condition}` failed ({self.line})"


def why_again(frame: FrameType, entry: CacheEntry) -> Reason:
    """Return which guard of the function's latest graph a call fails."""
    args = (entry.guard_manager, entry.code, frame.f_locals, entry.compile_id, None, True)
    failure = get_guard_fail_reason(*args).strip()  # graph number, condition, source line, stack
    condition = re.sub(r"^\d+/\d+: ", "", failure).partition("  # ")[0].partition("\n")[0].strip()
    lines = re.findall(r'File "([^"]+)", line (\d+)', failure)
    return Reason(condition, ":".join(lines[-1]) if lines else _line(frame.f_code, condition))


def _line(code: CodeType, condition: str) -> str:
    """Return the first line of a function with a name of the condition.

    Dynamo keeps no line for conditions on symbols.
    """
    number = code.co_firstlineno
    names = re.findall(r"[A-Za-z_]\w*", condition.partition(" == ")[0])
    try:
        lines = inspect.getsourcelines(code)[0]
    except OSError:
        lines = []
    for k, text in enumerate(lines[1:], number + 1):
        if names and re.search(rf"\b{names[-1]}\b", text):
            number = k
            break
    return f"{code.co_filename}:{number}"


class Recaptures:
    """Counts repeated captures, for each function and each module that it is called with.

    Args:
        fallback_advice: as for ``DynamoBackend``; "" if PyTorch runs the rest already.
    """

    def __init__(self, fallback_advice: str) -> None:
        self._fallback_advice = fallback_advice
        self._reasons: dict[tuple[CodeType, int], list[Reason]] = {}
        self._said_subjects: set[tuple[CodeType, str]] = set()

    def add(self, frame: FrameType, reason: Reason) -> str:
        """Count one more capture. Return why PyTorch should run this call; "" to capture it.

        Logs once which function is captured again and again for one reason, and which function
        PyTorch runs. Raises ModelError for too many graphs if PyTorch must not run any.
        """
        if is_layer(frame):
            return ""
        module = next((v for v in frame.f_locals.values() if isinstance(v, torch.nn.Module)), None)
        before = self._reasons.setdefault((frame.f_code, id(module)), [])
        alike = [r for r in before if r.subject == reason.subject] + [reason]
        name = f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_code.co_firstlineno})"
        if len(alike) >= MOST_FOR_A_NUMBER and _goes_on(alike):
            many = f"{len(alike)} graphs for values of {reason.subject}"
        elif len(before) + 1 >= MOST_GRAPHS:
            many = f"{MOST_GRAPHS} graphs"
        else:
            before.append(reason)
            if len(alike) == SAID_AFTER:
                what = f"{name} is captured again and again, since {reason.subject} changes"
                self._say(frame, reason, f"{what} ({reason.line})")
            return ""
        if self._fallback_advice:
            raise ModelError(
                "The module became too many graphs.",
                expected=f"at most {MOST_GRAPHS}, and {MOST_FOR_A_NUMBER} for values of one number",
                received=f"{many}; one more would be captured, since {reason}",
                remedy=f"{reason.remedy}; or {self._fallback_advice}",
            )
        what = f"PyTorch runs {name} where no graph of it fits"
        self._say(
            frame,
            reason,
            f"{what}: there are {many}; one more would be captured, since {reason}",
            "left",
        )
        return f"{name} where no graph of it fits: {reason.subject} changes ({reason.line})"

    def _say(self, frame: FrameType, reason: Reason, what: str, kind: str = "") -> None:
        subject = (frame.f_code, kind or reason.subject)
        if subject not in self._said_subjects:
            self._said_subjects.add(subject)
            log.warning("%s; to have one graph, %s", what, reason.remedy)


def _goes_on(alike: list[Reason]) -> bool:
    """Return whether one more graph would not help: for numbers, and for lengths that only grow."""
    numbers = [r.of_number[1] for r in alike if r.of_number]
    if len(numbers) < len(alike):
        return False
    grows = all(a < b for a, b in itertools.pairwise(numbers))
    return grows or not alike[-1].subject.startswith("len(")

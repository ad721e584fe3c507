"""Why PyTorch runs a part of a module: the line, its cause, and what to write instead."""

from __future__ import annotations

import re
import sysconfig
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import convert_frame, utils

FORMAT_ERROR = Substitution(
    convert_frame,
    "format_error_msg",
    "Collects the errors for which Dynamo leaves a function to Python: `report()` gives the "
    "reasons.",
)
WARN_ONCE = Substitution(
    utils,
    "warn_once",
    "PyTorch would ask users to report a problem that Steep explains itself.",
)

_ELSEWHERE = "move the call out of forward, and pass its result as an argument"
_TENSOR = "keep it a tensor"
_BRANCH = (
    "a branch on the values of a tensor",
    "write torch.where(condition, a, b), or torch.cond",
)

# By the first words of Dynamo's reason: (what the code does, {} is its name; what to do).
_CUTS = {
    "generic_jump": _BRANCH,
    "Data-dependent": _BRANCH,
    "Unsupported Tensor.item()": (
        "a Python number taken from a tensor (item, int, float)",
        _TENSOR,
    ),
    "Data dependent operator": ("a Python number taken from a tensor", _TENSOR),
    "Unsupported Tensor.backward()": (
        "backward() within forward",
        "write torch.func.grad of a function, or call it after forward",
    ),
    "Failed to trace builtin operator": ("a call of {}", _ELSEWHERE),
    "Attempted to call function marked as skipped": ("a call of {}", _ELSEWHERE),
    "Attempted to inline function marked as skipped": ("a call of {}", _ELSEWHERE),
    "Unsupported method call": ("a call of {}", _ELSEWHERE),
    "Call to a time function": ("a call of {}", _ELSEWHERE),
    "Unsupported context manager": (
        "a context manager that the tracer does not follow",
        "enter it around the call of the module",
    ),
    "Attempted to wrap sparse Tensor": ("a sparse tensor", "keep it dense: to_dense()"),
    "Attempted to represent unregistered RemovableHandle": (
        "the handle of a hook",
        "return the tensor, and register the hook after the call",
    ),
    "using `torch.autograd.grad`": (
        "torch.autograd.grad within forward",
        "write torch.func.grad of a function",
    ),
    "a torch.autograd.Function within": (
        "a torch.autograd.Function within a transform of torch.func",
        "write what its backward computes, or apply it outside of the transform",
    ),
    "a random.Random": ("a call of a random.Random that is there before", "write torch.rand(())"),
    "a collective of": ("a collective of torch.distributed", "call it after forward"),
    "a call that has to know": ("a call whose result depends on the values of a tensor", _TENSOR),
    "Unsupported functorch tracing attempt": (
        "a function within a transform of torch.func that PyTorch runs",
        "see the reason of the transform",
    ),
    "Observed exception": ("an error that forward raises", "see that error"),
    "Call to `torch._dynamo.graph_break()`": ("torch._dynamo.graph_break()", "leave it out"),
}

_CALLS = {
    "random": "write torch.rand(()), whose numbers differ from call to call in a graph too",
    "time": "read the clock before and after the call of the module",
    "datetime": "read the clock before and after the call of the module",
    "print": "use logging (a graph ignores its calls), or print after forward",
}
"""What to do about a call, by a word of its qualified name."""

# What to do about an operation, by a pattern of the reason.
_OPERATIONS = {
    r"ONNX has no operator for": "write it in operators of docs/operators.md",
    r"change in place of a detached tensor": "make a new value, or change it under torch.no_grad()",
    r"change of a parameter": "change it after forward, under no_grad()",
    r"draws random numbers by values": "draw torch.rand of a fixed shape, and compare",
    r"Python number": _TENSOR,
    r"backward of": "write it with operators whose gradient is the one that you need",
    r"sparse": "leave out sparse=True",
    r"_unwrap_for_grad|dual": "write torch.func.grad or vjp: PyTorch runs forward-mode derivatives",
}


def graph_break_text(reason: str, stack: Sequence[Any] | None, default_place: str = "") -> str:
    """Return the text of a graph break: the code, its line, and what to write instead.

    ``reason`` is Dynamo's, ``stack`` the frames that led there; ``default_place`` is the place to
    report if no frame is user code.
    """
    what, instead = first_sentence(reason), _ELSEWHERE
    for begins, words in _CUTS.items():
        if what.startswith(begins):
            name = _name_in(reason)
            what = words[0].format(name) if name or "{}" not in words[0] else what
            about = [text for key, text in _CALLS.items() if key in re.split(r"\W+", name)]
            instead = about[0] if about and words[1] is _ELSEWHERE else words[1]
            break
    return f"{what}{place(stack) or default_place}: {instead}"


def operation(reason: str) -> str:
    """Return what to do about an operation that cannot be lowered for ``reason``."""
    remedies = (instead for pattern, instead in _OPERATIONS.items() if re.search(pattern, reason))
    return next(remedies, "write it in other operators, or move it out of forward")


_NAMES = (
    r"module: (?P<module>[\w.]+), qualname: (?P<name>[\w.<>]+)",
    r"builtin (?P<name>\w+) \[",
    r"qualname: (?P<name>[\w.<>]+)",
    r"call_method \w+\(<class '(?P<module>[\w.]+)'>\) (?P<name>\w+)",
    r"call_method \w+\(\S*\) (?P<name>\w+)",
    r"Called `(?P<name>[\w.]+)\(\)` inside",
)


def _name_in(reason: str) -> str:
    """Return the function that Dynamo's reason names, as users call it; "" if there is none."""
    for pattern in _NAMES:
        if match := re.search(pattern, reason):
            module = match.groupdict().get("module")
            name = f"{module}.{match['name']}" if module else match["name"]
            return re.sub(r"^Random\.", "random.", name)
    return ""


def first_sentence(text: str) -> str:
    """Return the first line of a text, without a last clause that continues in the next lines."""
    line = text.strip().partition("\n")[0].strip()
    if line.endswith(":"):
        line = line[:-1].rpartition(". ")[0] or line[:-1]
    return line


def summary_of(e: BaseException) -> str:
    """Return the class and first sentence of an error."""
    # the error of a call that Dynamo tried
    if within := re.search(r"got (\w+)\((['\"])(.*?)\2\)", str(e)):
        return f"{within[1]}: {within[3]}"
    return f"{type(e).__name__}: {first_sentence(str(e))}"


def has_no_operation(reason: str) -> bool:
    """Return whether Dynamo skips a function since it has no operation on tensors."""
    return "No ops traced" in reason


def skipped_function_text(code: types.CodeType, reason: str, reasons: Sequence[str]) -> str:
    """Return a text that PyTorch runs a whole function, which Dynamo skips for ``reason``."""
    name = re.sub(r"torch_dynamo_resume_in_(\w+)_at_\d+", r"the rest of \1", code.co_name)
    why = "for the reason above" if reasons else "nothing in it is captured"
    if has_no_operation(reason):
        why = "there is no operation on tensors in it"
    return f"{name} ({code.co_filename}:{code.co_firstlineno}), whole: {why}"


_PYTORCH, _PYTHON = str(Path(torch.__file__).parent), sysconfig.get_path("stdlib")


def is_users(file: str) -> bool:
    """Return whether a file is neither PyTorch's nor Python's own."""
    if file.startswith(_PYTORCH) or file.startswith(("<frozen", "<string")):
        return False
    return not file.startswith(_PYTHON) or "site-packages" in file


def place(stack: Sequence[Any] | None) -> str:
    """Return the innermost line of user code, else the innermost outside PyTorch: (FILE:LINE)."""
    outside = [f for f in stack or () if not f.filename.startswith(_PYTORCH)]
    own = [f for f in outside if is_users(f.filename)] or outside
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


@replaces(FORMAT_ERROR, WARN_ONCE)
def skipped_function_errors() -> Iterator[list[Exception]]:
    """Collect the errors for which Dynamo leaves a whole function to Python.

    Also suppresses Dynamo's advice to report such a function to PyTorch: Steep explains the reason
    itself.
    """
    errors: list[Exception] = []

    def note(e: Exception, *arguments: object) -> str:
        errors.append(e)
        return str(_format(e, *arguments))

    def warn_once(message: str, *arguments: object, **options: object) -> None:
        if "does not know how to trace" not in message:
            _warn_once(message, *arguments, **options)

    with substitute(
        {
            FORMAT_ERROR: note,
            WARN_ONCE: warn_once,
        }
    ):
        yield errors


_format = convert_frame.format_error_msg
_warn_once = utils.warn_once


class CannotTranslate(Exception):
    """An operation cannot be translated; ``node`` is its name, "" if unknown.

    ``reason`` is a text of Steep's own, or the exporter's error, then also ``cause``. ``others``
    maps names of operations to further operators without a translation.
    """

    def __init__(
        self, reason: str | Exception, node: str, others: dict[str, str] | None = None
    ) -> None:
        super().__init__(str(reason))
        self.cause = None if isinstance(reason, str) else reason
        self.node, self.others = node, others or {}

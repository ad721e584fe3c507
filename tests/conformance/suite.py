"""The node tests, what became of each, and the list of those that are not expected to pass.

``expected.txt`` has a line per test: ``name: kind: reason``. Kinds:

* ``refused``: an error of Steep's says what is not supported. Anything else is a failure.
* ``differs``: the result is another one; each of these is a fault, or the reason says why not.
* ``fails``: an error of another kind; a fault.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx.backend.test

import steep

from .backend import SteepBackend

LIST = Path(__file__).with_name("expected.txt")


class Outcome(NamedTuple):
    kind: str  # "passes", or one of those above
    reason: str = ""


class _Runner(onnx.backend.test.BackendTest):
    @classmethod
    def assert_similar_outputs(
        cls, ref_outputs: Any, outputs: Any, rtol: float, atol: float, model_dir: str | None = None
    ) -> None:
        """As ONNX's, which fails at scalars in a sequence: it takes the length of each item."""
        if isinstance(ref_outputs, np.ndarray) and isinstance(outputs, np.ndarray):
            ref_outputs, outputs = [ref_outputs], [outputs]
        super().assert_similar_outputs(ref_outputs, outputs, rtol, atol, model_dir)


def node_tests() -> dict[str, Callable[[], object]]:
    """The tests by name, in alphabetical order; calling one runs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests' own arithmetic overflows
        runner = _Runner(SteepBackend, __name__)
    cases = vars(runner.test_cases["OnnxBackendNodeModelTest"])
    return {
        name.removesuffix("_cpu"): functools.partial(test, None)
        for name, test in sorted(dict(cases).items())
        if name.endswith("_cpu")
    }


def outcome(test: Callable[[], object]) -> Outcome:
    try:
        test()
    except steep.InternalError as e:
        return Outcome("fails", _line(f"InternalError: {e.op} {e.what}"))
    except steep.Error as e:
        return Outcome("refused", _line(f"{type(e).__name__}: {e.op}: {e.what}"))
    except AssertionError as e:
        return Outcome("differs", _line(str(e)))
    except Exception as e:
        return Outcome("fails", _line(f"{type(e).__name__}: {e}"))
    return Outcome("passes")


def read_list() -> dict[str, Outcome]:
    expected = {}
    for line in LIST.read_text().splitlines():
        name, kind, reason = line.split(": ", 2)
        expected[name] = Outcome(kind, reason)
    return expected


def write_list(outcomes: dict[str, Outcome]) -> None:
    """Of those that do not pass. A reason stays as it is for as long as the kind does."""
    before = read_list() if LIST.exists() else {}
    lines = []
    for name, now in sorted(outcomes.items()):
        if now.kind == "passes":
            continue
        known = before.get(name, now)
        lines.append(f"{name}: {now.kind}: {(known if known.kind == now.kind else now).reason}\n")
    LIST.write_text("".join(lines))


def summary(kinds: list[str]) -> str:
    parts = [f"conformance: {kinds.count('passes')} of {len(kinds)} node tests pass"]
    for kind, text in (("refused", "refused as listed"), ("differs", "differ"), ("fails", "fail")):
        if kind in kinds:
            parts.append(f"{kinds.count(kind)} {text}")
    return ", ".join(parts)


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:120].strip()

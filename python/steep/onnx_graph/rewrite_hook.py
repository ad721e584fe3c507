"""A rewrite of captured graphs in ONNX, before they are differentiated."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx

from steep.errors import ModelError

_local = threading.local()


class Rewrite:
    """Changes each ONNX model that a thread lowers, within ``rewriting``.

    What goes wrong is kept: the capture takes any error for one of the graph's, and would let
    PyTorch run it.

    Args:
        changes: each changes a ModelProto in place. It computes the same function after that, of
            inputs and outputs with the same names.
    """

    def __init__(self, changes: Sequence[Callable[[Any], None]]) -> None:
        self._changes = changes
        self.error: Exception | None = None  # the first

    def __call__(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return a changed copy of a ModelProto; itself where nothing is to be changed."""
        if not self._changes:
            return model
        changed = type(model)()
        changed.CopyFrom(model)
        try:
            for change in self._changes:
                change(changed)
            for kind in ("input", "output"):
                before, after = ([v.name for v in getattr(m.graph, kind)] for m in (model, changed))
                if before != after:
                    raise ModelError(
                        f"A rewrite changed the {kind}s of a graph.",
                        expected=", ".join(before),
                        received=", ".join(after),
                        remedy="replace nodes only; keep the names of inputs and outputs",
                    )
            onnx.checker.check_model(changed)
        except onnx.checker.ValidationError as e:
            self.error = self.error or ModelError(
                "A rewrite made a graph that is not valid ONNX.",
                received=str(e).strip(),
                remedy="replace nodes by nodes of ONNX's operators",
            )
            raise self.error from e
        except Exception as e:
            self.error = self.error or e
            raise
        return changed


@contextlib.contextmanager
def rewriting(rewrite: Rewrite) -> Iterator[None]:
    """Within, graphs that this thread lowers are rewritten, before anything else is done."""
    before = current_rewrite()
    _local.rewrite = rewrite
    try:
        yield
    finally:
        _local.rewrite = before


def current_rewrite() -> Rewrite | None:
    """Return that of the innermost ``rewriting`` of this thread."""
    return getattr(_local, "rewrite", None)

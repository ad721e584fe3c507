"""Users' rewrites of lowered graphs, which run before differentiation."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx

from steep.errors import ModelError

_local = threading.local()


class Rewrite:
    """Changes each ONNX model that a thread lowers inside ``rewriting``.

    ``error`` keeps the first error, since the capture treats any error as a refusal of the graph,
    and would let PyTorch run it.

    Args:
        changes: functions that each change a ModelProto in place. The changed model must compute
            the same function, with the same names of inputs and outputs.
    """

    def __init__(self, changes: Sequence[Callable[[Any], None]]) -> None:
        self._changes = changes
        self.error: Exception | None = None  # the first error

    def __call__(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return a changed copy of a ModelProto; the proto itself if there are no changes."""
        if not self._changes:
            return model
        result = type(model)()
        result.CopyFrom(model)
        try:
            for change in self._changes:
                change(result)
            for kind in ("input", "output"):
                before, after = ([v.name for v in getattr(m.graph, kind)] for m in (model, result))
                if before != after:
                    raise ModelError(
                        f"A rewrite changed the {kind}s of a graph.",
                        expected=", ".join(before),
                        received=", ".join(after),
                        remedy="replace nodes only; keep the names of inputs and outputs",
                    )
            onnx.checker.check_model(result)
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
        return result


@contextlib.contextmanager
def rewriting(rewrite: Rewrite) -> Iterator[None]:
    """Rewrite the graphs that this thread lowers in the ``with`` block, before anything else."""
    before = current_rewrite()
    _local.rewrite = rewrite
    try:
        yield
    finally:
        _local.rewrite = before


def current_rewrite() -> Rewrite | None:
    """Return the rewrite of this thread's innermost ``rewriting``, or None."""
    return getattr(_local, "rewrite", None)

"""A functional graph, forward or backward, in parts for the engine and parts for PyTorch."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.passes.split_module import split_module

from steep._steep import ProviderChoice
from steep.dynamo import forks
from steep.dynamo.report import GraphReport
from steep.errors import ModelError, ProviderError, ShapeError, counted
from steep.public_capture.onnx_part import CannotExport, OnnxPart

log = logging.getLogger("steep")

_MOVES_ONLY = frozenset(
    {
        *("alias", "clone", "detach", "expand", "permute", "select"),
        *("slice", "squeeze", "t", "transpose", "unsqueeze", "view"),
    }
)
"""Operators that compute nothing: the engine gets no part of these alone."""

_LEFT = frozenset(
    {
        "as_strided",  # depends on the memory's layout
        "max_pool2d_with_indices",  # PyTorch's backward expects PyTorch's indices
        "max_pool3d_with_indices",
        # the exporter does not update the running statistics
        "_native_batch_norm_legit_functional",
    }
)
"""Operators that PyTorch runs, as it does those that draw random numbers from its generator."""

_DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.float64,
    }
)


@dataclasses.dataclass
class CaptureState:
    """Options and state that the graphs of a module share.

    Attributes:
        steps: how many first steps of each graph are compared with PyTorch's.
        providers, disabled_passes: as for ``ORTModule``.
        record: called with a report of each graph.
        training: returns the mode of the module, for ``record``.
        ran_in_engine: whether anything ran in the engine.
        untranslatable: names of operators for which the exporter had no ONNX translation.
    """

    steps: int
    providers: Sequence[ProviderChoice] = ()
    disabled_passes: Sequence[str] = ()
    record: Callable[[GraphReport], None] = lambda report: None
    training: Callable[[], bool] = lambda: False
    ran_in_engine: bool = False
    untranslatable: set[str] = dataclasses.field(default_factory=set)


class FunctionalGraph:
    """A graph of ATen operators without mutations of arguments, with fixed extents.

    It is compiled at its first call, when no trace is active. Calls from several threads are safe.

    Args:
        graph_module: the graph, with an example of each value in ``meta["val"]``.
        state: those of its module.
    """

    def __init__(self, graph_module: torch.fx.GraphModule, state: CaptureState) -> None:
        self.graph_module = graph_module
        self.state = state
        self.parts = _Parts(graph_module, state)
        self._reported = False

    def __call__(self, *arguments: object) -> Any:
        """Return the values of the graph's output node.

        Raises DataError: an argument holds wrong values, such as an index out of range.
        """
        if self._reported:
            return self.parts(*arguments)
        with forks.tracing:
            start = time.perf_counter()
            results = self.parts(*arguments)
            if not self._reported:
                self._reported = True
                self._report(time.perf_counter() - start)
        return results

    def _report(self, seconds: float) -> None:
        reasons = tuple(dict.fromkeys(self.parts.reasons()))
        count = self.parts.operators()
        if reasons and not count:
            log.warning("PyTorch runs a graph whole: %s", "; ".join(reasons))
        self.state.record(
            GraphReport(
                "torch.compile" if count else "PyTorch",
                "" if count else "; ".join(reasons) or "it computes nothing",
                self.state.training(),
                seconds,
                operators=count,
                in_torch=reasons,
            )
        )


class _Parts(torch.nn.Module):
    """A graph, split into parts that the engine can probably run, and the rest."""

    def __init__(self, graph_module: torch.fx.GraphModule, state: CaptureState) -> None:
        super().__init__()
        self.state = state
        numbers, why = _number(graph_module.graph, state.untranslatable)
        self.why = why
        self.parts = graph_module
        if any(numbers.values()):
            self.parts = split_module(graph_module, graph_module, numbers.__getitem__)
            for number in {n for n in numbers.values() if n % 2}:
                part = getattr(self.parts, f"submod_{number}")
                setattr(self.parts, f"submod_{number}", _Part(part, state))

    def forward(self, *arguments: object) -> Any:
        return self.parts(*arguments)

    def _inner(self) -> list[_Part]:
        return [part for part in self.parts.children() if isinstance(part, _Part)]

    def operators(self) -> int:
        """Return the number of ONNX operators."""
        return sum(part.operators() for part in self._inner())

    def reasons(self) -> list[str]:
        """Return texts of what PyTorch runs, and why."""
        return self.why + [reason for part in self._inner() for reason in part.reasons()]


class _Part(torch.nn.Module):
    """A part that is compiled for the engine at its first call; if that fails, PyTorch runs it."""

    def __init__(self, graph_module: torch.fx.GraphModule, state: CaptureState) -> None:
        super().__init__()
        self.graph_module = graph_module
        self.state = state
        self.run: Any = None
        self.reason = ""

    def forward(self, *arguments: object) -> Any:
        if self.run is not None:
            return self.run(*arguments)
        try:
            part = OnnxPart(
                self.graph_module,
                arguments,
                self.state.providers,
                self.state.disabled_passes,
            )
            results = part(*arguments)
        except CannotExport as e:
            operators = {str(n.target) for n in self.graph_module.graph.nodes}
            if e.operator in operators - self.state.untranslatable:
                self.state.untranslatable.add(e.operator)
                self.run = _Parts(self.graph_module, self.state)
            else:
                self._leave(str(e))
        except (ModelError, ProviderError, ShapeError) as e:
            self._leave(str(e))
        else:
            self.run = part
            self.state.ran_in_engine = True
            return results
        return self.forward(*arguments)

    def _leave(self, reason: str) -> None:
        count = sum(n.op == "call_function" for n in self.graph_module.graph.nodes)
        self.reason = f"a part of {counted(count, 'operator')}: {reason}"
        log.warning("PyTorch runs %s", self.reason)
        self.run = self.graph_module

    def operators(self) -> int:
        """Return the number of ONNX operators."""
        if isinstance(self.run, OnnxPart):
            return self.run.operators
        return self.run.operators() if isinstance(self.run, _Parts) else 0

    def reasons(self) -> list[str]:
        """Return texts of what PyTorch runs, and why."""
        inner = self.run.reasons() if isinstance(self.run, _Parts) else []
        return inner + ([self.reason] if self.reason else [])


def _number(
    graph: torch.fx.Graph, untranslatable: set[str]
) -> tuple[dict[torch.fx.Node, int], list[str]]:
    """Number the parts of a graph in order; the engine's parts have odd numbers.

    Also returns texts of what PyTorch runs, and why.
    """
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    why: dict[torch.fx.Node, str] = {}
    for node in calls:
        if node.target is operator.getitem:  # belongs to the call whose result it takes
            why[node] = why[node.args[0]]
        else:
            why[node] = _why_not(node, untranslatable)
    numbers: dict[torch.fx.Node, int] = {}
    last = 0
    for is_left, run in itertools.groupby(calls, key=lambda node: bool(why[node])):
        nodes = list(run)
        ours = not is_left and any(map(_computes, nodes))
        last += 1 if ours != last % 2 else 0
        numbers.update(dict.fromkeys(nodes, last))
    for node in calls:
        if node.target is operator.getitem:
            numbers[node] = numbers[node.args[0]]
    reasons = [reason for node, reason in why.items() if node.target is not operator.getitem]
    return numbers, [reason for reason in reasons if reason]


def _why_not(node: torch.fx.Node, untranslatable: set[str]) -> str:
    """Return why the engine cannot run an operator, or ""."""
    name = str(node.target)
    if node.op != "call_function" or not name.startswith("aten."):
        return f"{name} is no operator of ATen"
    if name in untranslatable:
        return f"ONNX has no operator for {name}"
    if _packet(node) in _LEFT:
        return f"{name} is left to PyTorch"
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return f"{name} draws random numbers"
    what = _unknown_type(node)
    return f"{name} has {what}" if what else ""


def _unknown_type(node: torch.fx.Node) -> str:
    """Return which value of an operator the engine does not support, or ""."""
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    flat = [v for value in values for v in (value if isinstance(value, (tuple, list)) else [value])]
    tensors = [v for v in flat if isinstance(v, torch.Tensor)]
    if len(tensors) < sum(v is not None for v in flat):
        return "an extent that changes: compile with dynamic=False"
    for t in tensors:
        if t.device.type != "cpu":
            return f"a tensor on {t.device}, and the engine computes on the CPU: move it there"
        if t.dtype not in _DTYPES:
            return f"a tensor of {t.dtype}, which the engine does not have"
    return ""


def _packet(node: torch.fx.Node) -> str:
    """Return the operator's name without namespace and overload: "mm" of "aten.mm.default"."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _computes(node: torch.fx.Node) -> bool:
    return node.target is not operator.getitem and _packet(node) not in _MOVES_ONLY

"""Report about a captured module: its graphs, why there are several, and what PyTorch runs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from steep.errors import counted

if TYPE_CHECKING:
    from steep.graph.flops import Arithmetic
    from steep.verify.compare import Outcome


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """How one graph of the module was made."""

    # "dynamo", or "torch.compile" with an untested release of PyTorch; "PyTorch" if that runs all
    exporter: str
    reason: str  # why PyTorch runs the whole graph; empty otherwise
    training: bool
    seconds: float
    cached: bool = False  # whether the lowered model is from the cache
    place: str = ""  # FILE:LINE of the captured function, if known
    because: str = ""  # the guard of an earlier graph that failed
    operators: int = 0  # number of ONNX operators in the engine
    in_torch: tuple[str, ...] = ()  # operations between parts that PyTorch runs, and why
    arithmetic: Arithmetic | None = dataclasses.field(default=None, repr=False, compare=False)
    outcomes: tuple[Outcome, ...] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def verified(self) -> float | None:
        """The largest relative difference to PyTorch's results and gradients in the first step.

        None: not all of the graph was compared (``verify=True`` requests it; see ``ORTModule``).
        """
        differences = [o.largest for o in self.outcomes if o.largest is not None]
        return max(differences) if differences and len(differences) == len(self.outcomes) else None

    @property
    def flops(self) -> tuple[int, int] | None:
        """Floating-point operations of a forward pass: (in the engine, in PyTorch).

        Counted are matrix products, convolutions and attention of the captured graph, for the
        extents of its first call, as ``torch.utils.flop_counter`` counts them: a multiplication
        with an addition is two. Backward, elementwise operators and code between graphs do not
        count. None if it could not be counted.
        """
        return None if self.arithmetic is None else self.arithmetic.flops

    def __str__(self) -> str:
        """Return a line about the graph, and one more for each remarkable fact."""
        mode = "training" if self.training else "evaluation"
        source = "from the cache" if self.cached else f"in {self.seconds:.1f} s"
        lines = [
            f"{self.exporter}, {mode}, {counted(self.operators, 'operator')}, {source} {self.place}"
        ]
        if self.verified is not None:
            lines.append(f"  differs from PyTorch by at most {self.verified:.1g}")
        if self.because:
            lines.append(f"  captured again: {self.because}")
        if self.exporter == "PyTorch":
            lines.append(f"  PyTorch runs it all: {self.reason}")
        lines += [f"  PyTorch runs one operation: {why}" for why in self.in_torch]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of ``ORTModule.report()``: print it, or read its fields."""

    module: str
    graphs: tuple[GraphReport, ...]
    breaks: tuple[str, ...]  # reasons of graph breaks; PyTorch runs the code between graphs
    fallback_calls: int  # number of whole calls that PyTorch ran
    other_methods: tuple[str, ...] = ()  # methods other than forward that PyTorch ran

    @property
    def whole(self) -> bool:
        """Whether the engine runs all of every graph so far, and PyTorch ran no call."""
        in_pytorch = any(g.exporter == "PyTorch" or g.in_torch for g in self.graphs)
        return not (in_pytorch or self.breaks or self.fallback_calls or self.other_methods)

    @property
    def share(self) -> float | None:
        """The engine's share of the arithmetic in all graphs, as ``flops`` counts it, from 0 to 1.

        None if there is no arithmetic, or a graph's could not be counted.
        """
        counts = [g.flops for g in self.graphs]
        pairs = [c for c in counts if c is not None]
        total = sum(here + there for here, there in pairs)
        return sum(here for here, _ in pairs) / total if total and None not in counts else None

    def __str__(self) -> str:
        """Return a list with one item for each graph."""
        seconds = sum(g.seconds for g in self.graphs)
        lines = [
            f"{self.module}: {counted(len(self.graphs), 'graph')}, {seconds:.1f} s to make them"
        ]
        for number, graph in enumerate(self.graphs, 1):
            first, *more = str(graph).splitlines()
            lines.append(f"{number:3}  {first}")
            lines += [f"     {line}" for line in more]
        if self.share is not None:
            of = "of these graphs " if self.breaks else ""
            lines.append(f"{self.share:.1%} of the products and convolutions {of}run in the engine")
        lines += [f"PyTorch runs code between two graphs: {why}" for why in self.breaks]
        lines += [
            f"PyTorch runs a method other than forward: {what}" for what in self.other_methods
        ]
        if self.fallback_calls:
            lines.append(f"{counted(self.fallback_calls, 'call')} ran in PyTorch")
        return "\n".join(lines)

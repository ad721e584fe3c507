"""What became of a module: its graphs, why there are several, and what PyTorch runs of it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """How one graph of the module came about."""

    exporter: str  # "dynamo", "torch.export", "tracing"; "PyTorch", which runs it, when none can
    reason: str  # why not the first of those tried; empty when it was
    training: bool
    seconds: float
    cached: bool = False  # taken from what another process had exported
    place: str = ""  # FILE:LINE of the function that it is of, where known
    because: str = ""  # the condition of an earlier graph that no longer held
    operators: int = 0  # of ONNX, in the engine
    in_torch: tuple[str, ...] = ()  # operations between its parts that PyTorch runs, and why

    def __str__(self) -> str:
        """Say it in a line, and one more for each thing of note."""
        mode = "training" if self.training else "evaluation"
        source = "from the cache" if self.cached else f"in {self.seconds:.1f} s"
        lines = [f"{self.exporter}, {mode}, {self.operators} operators, {source} {self.place}"]
        if self.because:
            lines.append(f"  captured again: {self.because}")
        if self.exporter == "PyTorch":
            lines.append(f"  PyTorch runs it all: {self.reason}")
        lines += [f"  PyTorch runs one operation: {why}" for why in self.in_torch]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Report:
    """What ``ORTModule.report()`` gives: print it, or read its fields."""

    module: str
    graphs: tuple[ExportReport, ...]
    breaks: tuple[str, ...]  # why PyTorch runs what lies between graphs
    fallback_calls: int  # that PyTorch ran, whole

    @property
    def whole(self) -> bool:
        """Does the engine run all of every graph so far, and was no call PyTorch's?"""
        left = any(g.exporter == "PyTorch" or g.in_torch for g in self.graphs)
        return not (left or self.breaks or self.fallback_calls)

    def __str__(self) -> str:
        """Write it as a list, a graph an item."""
        seconds = sum(g.seconds for g in self.graphs)
        lines = [f"{self.module}: {len(self.graphs)} graphs, {seconds:.1f} s to make them"]
        for number, graph in enumerate(self.graphs, 1):
            first, *more = str(graph).splitlines()
            lines.append(f"{number:3}  {first}")
            lines += [f"     {line}" for line in more]
        lines += [f"PyTorch runs what lies between two graphs: {why}" for why in self.breaks]
        if self.fallback_calls:
            lines.append(f"{self.fallback_calls} calls ran in PyTorch")
        return "\n".join(lines)

"""Writes an ORTModule's graphs to files, and reports their compile time and memory."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steep._steep import gradient_model, write_file

if TYPE_CHECKING:
    from steep.graph.compiled_graph import CompiledGraph


class GraphFiles:
    """Writes each graph once, and once more if the other mode runs it, too.

    Args:
        folder: folder of the files.
        prefix: prefix of their names.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._written_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
        self._counts: collections.Counter[str] = collections.Counter()

    def write(self, graphs: Sequence[CompiledGraph], training: bool) -> None:
        """Write the graphs that are new, of a module that is in training mode or not.

        Raises:
            IoError: a file cannot be written.
        """
        for graph in graphs:
            if graph not in self._written_graphs:
                self._written_graphs.add(graph)
                self._write(graph, _mode_of(graph, training))

    def write_of_mode(self, graphs: Sequence[CompiledGraph], training: bool) -> None:
        """Write graphs of the other mode for this one, if nothing is written of it yet.

        Raises:
            IoError: a file cannot be written.
        """
        named = [(graph, _mode_of(graph, training)) for graph in graphs]
        for graph, mode in [(g, m) for g, m in named if not self._counts[m]]:
            self._write(graph, mode)

    def _write(self, graph: CompiledGraph, mode: str) -> None:
        self._counts[mode] += 1
        number = "" if self._counts[mode] == 1 else f"_{self._counts[mode]}"
        engine = graph.engine_graph

        def put(stage: str, content: bytes) -> None:
            write_file(str(self._folder / f"{self._prefix}{number}_{stage}"), content)

        onnx_bytes = graph.lowered.model.SerializeToString()
        put(f"torch_exported_{mode}.onnx", onnx_bytes)
        if engine.model != onnx_bytes:
            put(f"optimized_pre_grad_{mode}.onnx", engine.model)
        compiled = engine.program.compiled_model(graph.types, engine.gradients)
        put(f"optimized_{mode}.onnx", compiled)
        put(f"optimized_{mode}.txt", graph.dump(engine.gradients).encode())
        if engine.gradients:
            name_of = dict(zip(engine.inputs, engine.names, strict=True))
            outputs = [o.name for o in graph.lowered.model.graph.output]
            differentiable = engine.program.differentiable
            content = gradient_model(
                engine.model,
                [name_of[i] for i in engine.wanted_inputs if i in name_of],
                [o for o, can in zip(outputs, differentiable, strict=True) if can],
                True,
            )
            put(f"execution_model_{mode}.onnx", content)


def _mode_of(graph: CompiledGraph, training: bool) -> str:
    return "training" if training and graph.engine_graph.gradients else "inference"


def stage_table(graph: CompiledGraph) -> str:
    """Return a table of the compiler's stages for a graph, for the extents of its first engine."""
    plan = graph.engine_graph.program.plan_for(graph.types, graph.engine_graph.gradients)
    lines = [f"{'stage':<20}{'ms':>8}{'nodes':>8}{'change':>8}"]
    before: int | None = None
    for stage in plan.stages:
        change = "" if before is None or stage.nodes == before else f"{stage.nodes - before:+d}"
        lines.append(f"{stage.name:<20}{stage.milliseconds:8.1f}{stage.nodes:8}{change:>8}")
        before = stage.nodes
    lines.append(f"{'all':<20}{plan.specialise_ms:8.1f}    {plan.kernels} kernels, {plan}")
    return "\n".join(lines)


def memory_line(graphs: Sequence[CompiledGraph]) -> str:
    """Return as text the peak memory of each graph's runs so far."""
    peaks = [p.engine_graph.program.peak_bytes for p in graphs]
    return "steep: peak of each graph so far: " + ", ".join(f"{b / 2**20:.1f} MiB" for b in peaks)

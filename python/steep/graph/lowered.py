"""A captured graph in ONNX, with facts about its inputs, writes and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from steep.graph.autograd_reach import find_reach
from steep.graph.captured_graph import take_sizes_from_tensors
from steep.graph.outputs import CallValues, Output, outputs_and_values
from steep.graph.raise_checks import Check, raise_where, take_checks
from steep.graph.saved_memory import operands_of_products, saved_memory
from steep.lowering.aliasing import memory_named
from steep.lowering.autocast_regions import narrow_arguments, regions_of, widen
from steep.lowering.autograd_grad import expand_autograd_grad
from steep.lowering.capture_context import CaptureContext
from steep.lowering.func_transforms import CAPTURED_AS, expand_transforms
from steep.lowering.lower import CannotLower, OnnxGraph, lower, outputs_of
from steep.lowering.python_numbers import Numbers
from steep.lowering.random_inputs import copy_written_dropouts
from steep.lowering.several_results import call_by_name
from steep.lowering.unsupported import (
    refuse_complex,
    refuse_histories,
    refuse_lost_writes,
    refuse_mixed_products,
    refuse_overlaps,
    refuse_unsure_strides,
    refuse_writes_of_backward,
)
from steep.onnx_graph.narrow_outputs import narrow_outputs
from steep.torch_internals.autograd import set_grad_enabled


class NothingToRun(Exception):
    """The graph returns only views of its arguments, numbers, or nothing."""


@dataclasses.dataclass(frozen=True)
class Input:
    """An input tensor of a call: an argument, a Python number, or random numbers.

    Attributes:
        fake: a fake tensor with dtype, extents and history.
        saved: whether PyTorch's autograd saves it without a copy, so that writing to it before
            backward is an error.
        in_place: whether the engine's backward reads its memory; otherwise backward reads a copy.
        read: whether the model has an input for it.
    """

    fake: torch.Tensor
    saved: bool
    in_place: bool
    read: bool


@dataclasses.dataclass(frozen=True)
class Write:
    """A result of the engine that is copied into an argument, which forward writes in place.

    Attributes:
        argument: position among the captured graph's placeholders.
        tensor: position among the tensors of a call.
        changes_history: whether the argument requires a gradient after the write, so that the write
            is part of its autograd history.
        reach: the tensors of a call that PyTorch's autograd reaches from the new value.
    """

    argument: int
    tensor: int
    changes_history: bool
    reach: set[int]


@dataclasses.dataclass(frozen=True)
class Value:
    """A result of the engine from which outputs of the captured graph are made.

    Attributes:
        node: node of the lowered graph.
        example: its value at the capture: a fake tensor or a symbolic number.
        name: name of the node in the captured graph.
        saved: as for ``Input``.
        reach: as for ``Write``.
    """

    node: torch.fx.Node
    example: Any
    name: str
    saved: bool
    reach: set[int]


@dataclasses.dataclass(frozen=True)
class RaisedCheck:
    """An error that forward raises if an extra output of the graph has a given truth value."""

    check: Check
    output: Output


class LoweredGraph:
    """A captured graph in ONNX.

    The model's inputs are ``arg_i`` for i in ``inputs``, which are positions among the tensors that
    ``call_tensors`` returns. Its first outputs are the ``writes``, the others the ``values``.

    Args:
        graph_module: a copy of the captured graph; lowering changes it.
        examples: the fake values of its placeholders.
        context: the modes and options of the call.
        fixed: names of operations for which Python numbers are constants; None: for all.

    Raises NothingToRun, CannotLower, or errors of the exporter.

    Attributes:
        context: as given.
        graph: the graph that was lowered.
        positions: those of the captured graph's placeholders that remain; the others are extents.
        tensors: the tensors of a call.
        inputs: positions of the tensors that are inputs of the model.
        writes: results that are copied into arguments.
        write_targets: positions of these arguments.
        values: results from which outputs are made.
        outputs: how each output of the captured graph is made.
        checks: errors that are raised before anything is written.
        model, draws, cached, store: as for ``OnnxGraph``.
        changes_modes: whether forward turns gradients on or off.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        examples: Sequence[Any],
        context: CaptureContext,
        fixed_nodes: frozenset[str] | None = frozenset(),
    ) -> None:
        self.context = context
        self.graph = graph = graph_module.graph
        # Placeholders that are extents go first: what remains of numbers are Python's.
        self.positions = take_sizes_from_tensors(graph)
        self._numbers = Numbers(graph, fixed_nodes, context.fake_mode)
        self._refuse_calls(graph_module)
        narrow = self._expand()
        # Outputs refer to nodes, and expansions replace nodes.
        results = self._take_outputs()
        refuse_histories(graph, results, context)
        refuse_complex(graph, results)
        fakes = [n.meta["example_value"] for n in graph.nodes if n.op == "placeholder"]
        _refuse_inputs(fakes, [examples[i] for i in self.positions])
        widen(graph, narrow)
        (end,) = (n for n in graph.nodes if n.op == "output")
        end.args = (tuple(results),)
        self._numbers.remove_computed_nodes()  # they are no longer outputs
        graph_module.recompile()
        regions = regions_of(graph, context)  # again, since transforms were expanded
        onnx_graph = lower(graph_module, fakes, regions, context)
        if not onnx_graph.model.graph.node:
            raise NothingToRun
        self.model, self.draws = onnx_graph.model, onnx_graph.draws
        narrow_outputs(self.model.graph, [n.meta["example_value"] for n in results])
        self.cached, self.store = onnx_graph.cached, onnx_graph.store
        self._note(onnx_graph, fakes, results)
        self.changes_modes = any(n.target is set_grad_enabled for n in graph.nodes)

    def _refuse_calls(self, graph_module: torch.fx.GraphModule) -> None:
        """Raise CannotLower for calls of forward; before expansions, which rewrite these calls."""
        graph, context = graph_module.graph, self.context
        refuse_overlaps(graph)
        refuse_lost_writes(graph)
        refuse_unsure_strides(graph)
        refuse_mixed_products(graph, regions_of(graph, context), context)
        refuse_writes_of_backward(graph_module)

    def _expand(self) -> list[torch.fx.Node]:
        """Expand derivatives and transforms; return the 16-bit arguments made by autocast.

        Transforms come second: one that contains ``torch.autograd.grad`` is not expanded. The
        arguments are those that the expanded graph reads.
        """
        call_by_name(self.graph)
        copy_written_dropouts(self.graph)
        expand_autograd_grad(self.graph)
        expand_transforms(self.graph)
        return narrow_arguments(self.graph) if self.context.autocast_enabled else []

    def _take_outputs(self) -> list[torch.fx.Node]:
        """Record how outputs and checks are made; return the nodes that the engine computes."""
        (end,) = (n for n in self.graph.nodes if n.op == "output")
        self._single = not isinstance(end.args[0], (tuple, list))
        checks, looked_at = take_checks(self.graph)
        nodes = [*looked_at, *outputs_of(end)]
        outputs, results = outputs_and_values(self.graph, nodes, self._numbers.results)
        self.outputs = outputs[len(looked_at) :]
        self.checks = [*map(RaisedCheck, checks, outputs)]
        return results

    def _note(
        self, onnx_graph: OnnxGraph, fakes: list[torch.Tensor], nodes: list[torch.fx.Node]
    ) -> None:
        """Record facts about inputs and results; ``fakes`` are the fake tensors of the inputs."""
        examples = [n.meta["example_value"] for n in nodes]
        results = [*(fakes[i] for i in onnx_graph.write_targets), *examples]
        reaches = find_reach(results, fakes)
        memory = saved_memory(results, fakes)
        products = operands_of_products(self.graph)

        def is_saved(t: object) -> bool:
            return memory is None or memory_named(t) in memory

        names = {v.name for v in onnx_graph.model.graph.input}
        self.tensors = []
        for i, t in enumerate([*fakes, *onnx_graph.draws.examples]):
            # written arguments are copied before, and drawn numbers belong to this call
            own = i >= len(fakes) or i in onnx_graph.write_targets
            in_place = own or (is_saved(t) and memory_named(t) in products)
            self.tensors.append(Input(t, own or is_saved(t), in_place, f"arg_{i}" in names))
        self.inputs = [i for i, tensor in enumerate(self.tensors) if tensor.read]
        self.writes = [
            Write(self.positions[i], i, fakes[i].requires_grad, reach)
            for i, reach in zip(onnx_graph.write_targets, reaches, strict=False)
        ]
        self.write_targets = [write.argument for write in self.writes]
        self._scalars = [(k, fake.dtype) for k, fake in enumerate(fakes) if not fake.ndim]
        self.values = [
            Value(n, t, n.meta.get(CAPTURED_AS, n.name), is_saved(t), reach)
            for n, t, reach in zip(
                nodes, examples, reaches[len(onnx_graph.write_targets) :], strict=True
            )
        ]

    @property
    def operators(self) -> int:
        """Number of nodes of the model."""
        return len(self.model.graph.node)

    def call_tensors(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors of a call, given the values of the captured graph's placeholders.

        The graph's random numbers come last; they are drawn now. Lazily negated tensors are
        resolved.
        """
        tensors = [
            t.resolve_neg() if isinstance(t, torch.Tensor) else torch.tensor(t)
            for t in (arguments[i] for i in self.positions)
        ] + self._numbers.tensors(self._of(arguments))
        for k, dtype in self._scalars:
            if tensors[k].dtype != dtype:  # a number drawn by Python code
                tensors[k] = tensors[k].to(dtype)
        return tensors + self.draws(tensors)

    def results(self, arguments: Sequence[Any], values: Sequence[torch.Tensor]) -> object:
        """Return the captured graph's outputs, from the engine's results after the writes.

        ``arguments`` are the values of its placeholders.
        """
        call_values = self._call_values(arguments, values)
        results = tuple(output.of(call_values) for output in self.outputs)
        return results[0] if self._single else results

    def check(self, arguments: Sequence[Any], values: Sequence[torch.Tensor]) -> None:
        """Raise the error that forward raises for these values; arguments as for ``results``."""
        if not self.checks:
            return
        call_values = self._call_values(arguments, values)
        truths = [check.output.of(call_values) for check in self.checks]
        for value, check in zip(truths, self.checks, strict=True):
            raise_where(value, check.check.truth, *check.check.error)

    def _call_values(self, arguments: Sequence[Any], values: Sequence[torch.Tensor]) -> CallValues:
        like = [_like(v, e.example) for v, e in zip(values, self.values, strict=True)]
        operands = self._of(arguments)
        numbers = self._numbers.calculate_results(operands)
        return CallValues([*operands, *self._numbers.tensors(operands)], like, numbers)

    def _of(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the arguments that are placeholders of the lowered graph."""
        return [arguments[i] for i in self.positions]


def _refuse_inputs(fakes: Sequence[torch.Tensor], examples: Sequence[Any]) -> None:
    """Raise CannotLower for a device, or for an argument whose history forward changes.

    ``examples`` are the arguments; ``fakes`` are their values after forward, and then numbers.
    """
    for fake, example in zip(fakes, examples, strict=False):
        if fake.device.type != "cpu":
            reason = f"a tensor on {fake.device}, and the engine computes on the CPU"
            raise CannotLower(reason, "", remedy="move the module and its tensors to the CPU")
        if fake.requires_grad != getattr(example, "requires_grad", False):
            reason = (
                "forward writes a tensor that requires grad into an argument that does not"
                if fake.requires_grad
                else "forward detaches an argument that requires grad"
            )
            raise CannotLower(reason, "", remedy="return the new value as a result")


def _like(value: torch.Tensor, example: object) -> torch.Tensor:
    """Return a result with PyTorch's dtype; without history if PyTorch's result has none."""
    if not isinstance(example, torch.Tensor):
        return value
    if value.requires_grad and not example.requires_grad:
        value = value.detach()
    return value if value.dtype == example.dtype else value.to(example.dtype)

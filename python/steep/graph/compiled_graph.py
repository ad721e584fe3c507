"""A graph that Dynamo captured, in the engine.

It comes as calls of PyTorch on tensors, and on numbers for those extents that vary. Parameters and
buffers are inputs like any other. What forward writes in place becomes a result that is copied
back; a result that is a view of an argument, or of another result, is made by PyTorch, as one.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from steep.graph.autograd_node import Autograd, Call
from steep.graph.autograd_reach import connected
from steep.graph.gradient_order import by_arrival, in_order
from steep.graph.raise_checks import raise_where, take_checks
from steep.graph.saved_memory import kept_memory
from steep.lowering.aliasing import first_writer, hint, memory_named, memory_of, written_by
from steep.lowering.autocast_regions import narrow_arguments, regions_of, widen
from steep.lowering.autograd_grad import write_slopes
from steep.lowering.capture_context import CaptureContext
from steep.lowering.func_transforms import CAPTURED_AS, write_out
from steep.lowering.literal_tensors import literal_for
from steep.lowering.lower import lower, outputs_of, refusal
from steep.lowering.ops.autograd_function import Interpreter
from steep.lowering.python_numbers import Numbers, reads_number, takes_numbers
from steep.lowering.unsupported import (
    refuse_complex,
    refuse_histories,
    refuse_mixed_products,
    refuse_overlaps,
    refuse_sparse,
    refuse_without_derivative,
    refuse_writes_of_backward,
)
from steep.onnx_graph.gradient_reach import reached
from steep.patching.signals import deliver_signals

log = logging.getLogger("steep")


def bring_in(
    graph_module: torch.fx.GraphModule, examples: Sequence[Any], context: CaptureContext
) -> Piece:
    """Return what runs a captured graph on the values of its placeholders.

    Raises:
        NothingToRun: it computes nothing.
        CannotLower: it cannot be brought in.
    """
    return say(graph_module, examples, context, Piece)


def say(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    context: CaptureContext,
    make: Callable[[Lowered], Made],
) -> Made:
    """Return what ``make`` makes of a captured graph in ONNX; raise as ``bring_in``.

    Numbers of Python are inputs of it, but for those of operations that take no tensor in their
    place, such as the rate of a dropout.
    """
    numbers = takes_numbers(graph_module.graph)
    fixed: frozenset[str] | None = frozenset()
    while True:
        try:
            return _make(graph_module, examples, context, fixed, make)
        except NothingToRun:
            raise
        except Exception as e:  # the exporter and the engine raise whatever went wrong inside them
            refused = refusal(e)
            if fixed is None or not numbers:
                raise refused from e
            if refused.node not in fixed and reads_number(graph_module.graph, refused.node):
                fixed |= {refused.node}
            elif refused.without_word:  # whatever the numbers are
                raise refused from e
            else:
                fixed = None


def _make(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    context: CaptureContext,
    fixed: frozenset[str] | None,
    make: Callable[[Lowered], Made],
) -> Made:
    """Say a captured graph in ONNX, and make something of it; anew where the cache's is no use."""
    lowered = Lowered(copy_graph(graph_module), examples, context, fixed)
    try:
        return make(lowered)
    except Exception as e:
        if not lowered.cached:
            raise
        log.warning("ignoring a graph of the cache that cannot be used: %s", e)
    anew = dataclasses.replace(context, read_cache=False)
    return make(Lowered(copy_graph(graph_module), examples, anew, fixed))


_DATA = "steep.data"  # of a detach() that the module calls .data


class NothingToRun(Exception):
    """A graph gives views of its arguments, numbers, or nothing."""


class Lowered:
    """A captured graph in ONNX; ``examples`` are what its placeholders stand for now.

    ``model`` has the inputs ``arg_i`` for i in ``inputs``, which are positions among the tensors
    that ``given`` returns. Its first outputs are to be written to the arguments at ``written``.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        examples: Sequence[Any],
        context: CaptureContext,
        fixed: frozenset[str] | None = frozenset(),
    ) -> None:
        self.context = context
        self.graph = graph = graph_module.graph
        self.kept = _take_sizes_from_tensors(graph)
        self.numbers = Numbers(graph, fixed, context.fake_mode)
        refuse_overlaps(graph)
        refuse_mixed_products(graph, regions_of(graph, context), context)
        refuse_writes_of_backward(graph_module)
        write_slopes(graph)
        write_out(graph)
        narrow = narrow_arguments(graph) if context.autocast_enabled else []
        (end,) = (n for n in graph.nodes if n.op == "output")
        self.single = not isinstance(end.args[0], (tuple, list))
        self.checks, values = take_checks(graph)
        outputs = [*values, *outputs_of(end)]
        results, self.computed = _results(graph, outputs, self.numbers.results)
        self.results, self.looked_at = results[len(values) :], results[: len(values)]
        refuse_histories(graph, self.computed, context)
        refuse_complex(graph, self.computed)
        fakes = [n.meta["example_value"] for n in graph.nodes if n.op == "placeholder"]
        for fake, i in zip(fakes, self.kept, strict=False):  # numbers follow
            if fake.device.type != "cpu":
                raise RuntimeError(f"a tensor on {fake.device}")
            if fake.requires_grad != getattr(examples[i], "requires_grad", False):
                raise RuntimeError("forward writes what needs a gradient into an argument")
        widen(graph, narrow)
        end.args = (tuple(self.computed),)
        self.numbers.leave()
        graph_module.recompile()
        regions = regions_of(graph, context)  # anew: transforms are written out by now
        made = lower(graph_module, fakes, regions, context)
        self.model, self.draws, self.cached = made.model, made.draws, made.cached
        written = made.written
        if not self.model.graph.node:
            raise NothingToRun
        self.fakes = fakes
        given = [fakes[i] for i in written]
        values = [n.meta["example_value"] for n in self.computed]
        self.connected = connected([*given, *values], fakes)
        memory = kept_memory([*given, *values], fakes)
        self.kept_inputs, self.kept_results = (
            [memory is None or memory_named(t) in memory for t in some]
            for some in (fakes, [*given, *values])
        )
        self.written = [self.kept[i] for i in written]
        for i in written:  # the values before are a copy, those after it are copied
            self.kept_inputs[i] = True
        self.kept_results[: len(written)] = [True] * len(written)
        fakes += self.draws.examples
        self.kept_inputs += [True] * len(self.draws.examples)  # nobody else has them
        names = {v.name for v in self.model.graph.input}
        self.inputs = [i for i in range(len(fakes)) if f"arg_{i}" in names]
        self.changes_history = [fakes[i].requires_grad for i in written]
        self.examples = [n.meta["example_value"] for n in self.computed]
        self.names = [n.meta.get(CAPTURED_AS, n.name) for n in self.computed]  # as captured
        self.has_modes = any(n.target is torch._C._set_grad_enabled for n in graph.nodes)

    @property
    def operators(self) -> int:
        """How many nodes the model has."""
        return len(self.model.graph.node)

    def given(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors of a call, given the values of the captured graph's placeholders.

        What the graph draws follows them: it is drawn now. In memory they are what they say.
        """
        tensors = [
            t.resolve_neg() if isinstance(t, torch.Tensor) else torch.tensor(t)
            for t in (arguments[i] for i in self.kept)
        ] + self.numbers.tensors(self._of(arguments))
        for k, fake in enumerate(self.fakes[: len(tensors)]):
            if not fake.ndim and tensors[k].dtype != fake.dtype:  # a number that Python draws
                tensors[k] = tensors[k].to(fake.dtype)
        return tensors + self.draws(tensors)

    def outputs(self, arguments: Sequence[Any], made: list[torch.Tensor]) -> Any:
        """Return the captured graph's outputs, given those of the model after ``written``."""
        results = self._results_of(arguments, made, self.results)
        return results[0] if self.single else results

    def check(self, arguments: Sequence[Any], made: list[torch.Tensor]) -> None:
        """Raise what forward raises for these values; arguments as for ``outputs``."""
        values = self._results_of(arguments, made, self.looked_at) if self.checks else ()
        for check, value in zip(self.checks, values, strict=True):
            raise_where(value, check.truth, *check.error)

    def _results_of(
        self, arguments: Sequence[Any], made: list[torch.Tensor], results: Sequence[Any]
    ) -> tuple[Any, ...]:
        values = [_like(v, e) for v, e in zip(made, self.examples, strict=True)]
        given = self._of(arguments)
        numbers = self.numbers.made(given)
        given += self.numbers.tensors(given)
        return tuple(
            numbers[r.index] if isinstance(r, _Number) else r(given, values) for r in results
        )

    def _of(self, arguments: Sequence[Any]) -> list[Any]:
        """Return those that the graph has placeholders for."""
        return [arguments[i] for i in self.kept]


Made = TypeVar("Made")


class Piece:
    """A captured graph in the engine."""

    def __init__(self, lowered: Lowered) -> None:
        deliver_signals()
        self.lowered = lowered
        context, fakes, inputs = lowered.context, lowered.fakes, lowered.inputs
        model = lowered.model if context.rewrite is None else context.rewrite(lowered.model)
        wanted = []
        if context.grad_mode:
            reach, joined = reached(model.graph), set().union(*lowered.connected)
            asked = [i for i in inputs if fakes[i].requires_grad]
            wanted = [i for i in asked if i in joined or f"arg_{i}" in reach]
        self.call = Call(
            model.SerializeToString(),
            [f"arg_{i}" for i in inputs],
            inputs,
            len(fakes),
            tuple(by_arrival(lowered.graph, wanted)),
            precision=context.precision,
            providers=context.providers,
            connected=lowered.connected if wanted else (),
            kept_inputs=lowered.kept_inputs,
            kept_results=lowered.kept_results,
        )
        # as at the capture
        self.types = [(str(fakes[i].dtype)[6:], [hint(d) for d in fakes[i].shape]) for i in inputs]
        self._check_history()
        if lowered.cached:  # what is no use says so now, while the graph can be made anew
            self.call.program.plan_for(self.types, self.call.gradients)

    def _check_history(self) -> None:
        """Raise where a gradient would get lost, or reach what forward writes by another way."""
        if not self.lowered.context.grad_mode:
            return
        lowered, constant = self.lowered, self.call.constant_results
        refuse_sparse(lowered.graph)
        refuse_without_derivative(lowered.graph)
        changed = zip(lowered.written, lowered.changes_history, constant, strict=False)
        for i, needs, lost in changed:
            if needs and (lost or lowered.has_modes):
                what = RuntimeError("forward changes an argument that needs a gradient")
                fake = lowered.fakes[lowered.kept.index(i)]
                raise refusal(what, first_writer(lowered.graph, fake))
        for node, lost in zip(lowered.computed, constant[len(lowered.written) :], strict=True):
            value = node.meta["example_value"]
            if lost and isinstance(value, torch.Tensor) and value.requires_grad:
                raise refusal(RuntimeError(f"the gradient of {node.name} gets lost"), node)

    def __call__(self, *arguments: Any) -> Any:
        """Run it on the values of the captured graph's placeholders; return its outputs."""
        return self.give(arguments, self.make(self.feed(arguments)))

    def feed(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return what the engine is to be fed; what the graph draws is drawn."""
        tensors = self.lowered.given(arguments)
        for k, i in enumerate(self.lowered.kept):
            # backward may read what stood there before, and nothing of inference mode
            if i in self.lowered.written or tensors[k].is_inference():
                tensors[k] = tensors[k].clone()
            elif not tensors[k].is_contiguous():  # the engine's copy: who writes there is free to
                tensors[k] = tensors[k].contiguous()
        return tensors

    def make(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the engine's results: what is to be written, and then what was computed."""
        call = self.call
        if call.gradients and torch.is_grad_enabled():
            wanted = in_order([tensors[i] for i in call.wanted_inputs])
            return list(Autograd.apply(call, tensors, *wanted))
        return call.run(tensors, gradients=False)[0]

    def give(self, arguments: Sequence[Any], made: list[torch.Tensor]) -> Any:
        """Write what is to be written; return the captured graph's outputs."""
        lowered = self.lowered
        count = len(lowered.written)
        lowered.check(arguments, made[count:])
        for i, value, tracked in zip(lowered.written, made, lowered.changes_history, strict=False):
            # where the caller has none, the argument keeps the history that it had
            with torch.set_grad_enabled(tracked and torch.is_grad_enabled()):
                arguments[i].copy_(value)
        return lowered.outputs(arguments, made[count:])

    def dump(self, gradients: bool = True) -> str:
        """Return the text of graph and plan, for arguments of the extents that it was made for."""
        return self.call.program.dump(self.types, gradients)


# --- results -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Computed:
    """A result of the engine: the ``index``-th."""

    node: torch.fx.Node
    index: int

    def __call__(self, arguments: Sequence[Any], values: list[torch.Tensor]) -> Any:
        value = values[self.index]
        return value if isinstance(self.node.meta["example_value"], torch.Tensor) else value.item()


@dataclasses.dataclass(frozen=True)
class _Number:
    """A number that Python calculates: the ``index``-th."""

    index: int


@dataclasses.dataclass(frozen=True)
class _Constant:
    """What stands in the graph."""

    value: Any

    def __call__(self, arguments: Sequence[Any], values: list[torch.Tensor]) -> Any:
        return self.value


@dataclasses.dataclass(frozen=True)
class _View:
    """A view of an argument, or of a computed result, made by PyTorch."""

    chain: torch.fx.GraphModule  # of the arguments, and the result at ``base`` if it is not None
    base: int | None

    def __call__(self, arguments: Sequence[Any], values: list[torch.Tensor]) -> Any:
        given = () if self.base is None else (values[self.base],)
        return self.chain.forward(*arguments, *given)


_Result = _Computed | _Number | _Constant | _View


def _like(value: torch.Tensor, example: Any) -> torch.Tensor:
    """Return a result with the dtype that PyTorch gives it, and a history if it has one there."""
    if not isinstance(example, torch.Tensor):
        return value
    if value.requires_grad and not example.requires_grad:
        value = value.detach()
    return value if value.dtype == example.dtype else value.to(example.dtype)


def _results(
    graph: torch.fx.Graph, outputs: list[Any], numbers: dict[torch.fx.Node, int]
) -> tuple[list[_Result], list[torch.fx.Node]]:
    """Say how each output is made, and what the engine makes; that is distinct, in memory too.

    Where several share memory, the engine makes the tensor that it belongs to, and PyTorch the rest
    of them as views of that.
    """
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    given = {memory_of(n) for n in placeholders} - {None}
    owners: dict[int, torch.fx.Node] = {}
    for n in graph.nodes:
        if (memory := memory_of(n)) is not None:
            owners.setdefault(memory, n)
    wanted = Counter(memory_of(n) for n in {n for n in outputs if isinstance(n, torch.fx.Node)})
    computed: dict[torch.fx.Node, _Computed] = {}
    results: list[_Result] = []
    for node in outputs:
        memory = memory_of(node) if isinstance(node, torch.fx.Node) else None
        if not isinstance(node, torch.fx.Node):
            results.append(_Constant(node))
        elif node in numbers:
            results.append(_Number(numbers[node]))
        elif memory is not None and memory in given:
            results.append(_View(_views(placeholders, node, None), None))
        else:
            shared = memory is not None and wanted[memory] > 1
            base = owners[memory] if shared and memory is not None else node
            made = computed.setdefault(base, _Computed(base, len(computed)))
            if base is node:
                results.append(made)
            else:
                results.append(_View(_views(placeholders, node, base), made.index))
    return results, list(computed)


def _views(
    placeholders: list[torch.fx.Node], node: torch.fx.Node, base: torch.fx.Node | None
) -> torch.fx.GraphModule:
    """Return the calls that make ``node`` of the arguments or of ``base``, all of them views."""
    graph = torch.fx.Graph()
    copies = {p: graph.placeholder(p.name) for p in placeholders}
    if base is not None:
        copies[base] = graph.placeholder(f"{base.name}_value")

    def copy(n: torch.fx.Node) -> torch.fx.Node:
        if n not in copies:
            of_tensors = any(_is_tensor(i) or _is_several(i) for i in n.all_input_nodes)
            if n.op not in ("call_function", "call_method") or not (
                memory_of(n) in (None, memory_of(node)) and _reads(n, memory_of(node)) == of_tensors
            ):
                what = RuntimeError(f"the result {node.name} shares memory with another")
                raise refusal(what, node)
            target = written_by(n)  # what it writes is there by now
            copies[n] = graph.node_copy(n, copy) if target is None else copy(target)
            if n.meta.get(_DATA):  # what is written there is unseen by who kept the tensor
                copies[n].target = torch._C._autograd._get_data_attr
        return copies[n]

    graph.output(copy(node))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _is_tensor(n: torch.fx.Node) -> bool:
    return isinstance(n.meta.get("example_value"), torch.Tensor)


def _reads(n: torch.fx.Node, memory: int | None) -> bool:
    """Is an operand a tensor in this memory, or several, as what splits one gives?"""
    return any(memory_of(i) == memory or _is_several(i) for i in n.all_input_nodes)


def _is_several(n: torch.fx.Node) -> bool:
    return isinstance(n.meta.get("example_value"), (tuple, list))


# --- the graph -----------------------------------------------------------------------------------


def copy_graph(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return one whose graph may be changed; PyTorch keeps the other."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    for node in list(graph.nodes):
        if node.target is torch.ops.higher_order.tag_activation_checkpoint:
            node.target = _run_checkpointed
            node.kwargs = {}
        elif node.target is torch._C._autograd._get_data_attr:
            node.target = torch.detach  # which faithful() sees
            node.meta[_DATA] = True
        elif (literal := literal_for(node)) is not None:
            node.target = literal
        elif node.target is torch.ops.aten._assert_scalar.default:  # of what cannot fail
            graph.erase_node(node)
    return torch.fx.GraphModule(graph_module, graph)


def _run_checkpointed(body: torch.fx.GraphModule, *args: Any) -> Any:
    """Run what would be computed again in backward: that the engine plans by itself."""
    return Interpreter(copy_graph(body)).run(*args)  # it may hold others


def _take_sizes_from_tensors(graph: torch.fx.Graph) -> list[int]:
    """Drop placeholders that are extents of others; return the positions of those that stay."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    where: dict[str, tuple[torch.fx.Node, int]] = {}
    for node in placeholders:
        value = node.meta["example_value"]
        if isinstance(value, torch.Tensor):
            for axis, extent in enumerate(value.shape):
                if isinstance(extent, torch.SymInt):
                    where.setdefault(str(extent), (node, axis))
    kept = []
    with graph.inserting_after(placeholders[-1] if placeholders else None):
        for i, node in enumerate(placeholders):
            value = node.meta["example_value"]
            if not isinstance(value, torch.SymInt) or str(value) not in where:
                kept.append(i)
                continue
            size = graph.call_function(torch.ops.aten.sym_size.int, where[str(value)])
            size.meta["example_value"] = value
            node.replace_all_uses_with(size)
            graph.erase_node(node)
    return kept

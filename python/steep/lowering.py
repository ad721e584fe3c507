"""A graph of calls of PyTorch, as Dynamo captures it → an ONNX model.

It is traced once more, to functional ATen operators, under the symbols that Dynamo gave its
extents: whatever is bound on the way is guarded as well. The exporter of PyTorch has words for most
of these operators; translations.py and faithful.py add to them.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import torch
from torch._export.passes.lift_constants_pass import ConstantAttrMap, lift_constants_pass
from torch._functorch.aot_autograd import aot_export_module
from torch._guards import TracingContext
from torch.export.exported_program import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx.traceback import preserve_node_meta
from torch.onnx._internal.exporter import _core, _fx_passes, _registration
from torch.onnx._internal.exporter._errors import ConversionError
from torch.utils._pytree import tree_structure

from steep.faithful import TRANSLATIONS, faithful
from steep.quiet import quiet, replaced
from steep.translations import TRAINED, WITH_BACKWARD


def fake_mode() -> Any:
    """Return the mode under which Dynamo is tracing."""
    context = TracingContext.try_get()
    assert context is not None and context.fake_mode is not None  # Dynamo's
    return context.fake_mode


def outputs_of(end: torch.fx.Node) -> list[Any]:
    """Return what the output node of a graph gives, be it one value or several."""
    values = end.args[0]
    return list(values) if isinstance(values, (tuple, list)) else [values]


class CannotLower(Exception):
    """What the engine cannot run, and why.

    ``node`` is the name of the operation in the captured graph; "" where no single one is at fault.
    """

    def __init__(self, reason: str, node: str, place: str = "") -> None:
        super().__init__(f"{reason} ({place})" if place else reason)
        self.node = node


class _Interpreter(torch.fx.Interpreter):
    """Knows at which operation it was when one failed."""

    at: torch.fx.Node | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        self.at = n
        return super().run_node(n)


class _Faithful(torch.nn.Module):
    """Runs a captured graph so that all that it computes is seen, gradients included."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__()
        self.interpreter = _Interpreter(graph_module)
        # a failure names its operation by itself
        self.interpreter.extra_traceback = False

    def forward(self, *tensors: torch.Tensor) -> Any:
        with faithful(), preserve_node_meta():
            return self.interpreter.run(*tensors)


def refusal(e: Exception, at: torch.fx.Node | None = None) -> CannotLower:
    """Return what an error means for the graph, or the operation at which it came up."""
    if isinstance(e, CannotLower):
        return e
    text = str(e).strip()
    reason = f"{type(e).__name__}: {text.splitlines()[0] if text else ''}"[:300]
    return CannotLower(reason, "" if at is None else at.name, _place(at))


def _place(at: torch.fx.Node | None) -> str:
    """Return the last line of the user's code that led to an operation: FILE:LINE."""
    trace = at.meta.get("stack_trace") if at is not None else None
    places = re.findall(r'File "([^"]+)", line (\d+)', trace or "")
    return ":".join(places[-1]) if places else ""


def lower(graph_module: torch.fx.GraphModule, fakes: list[torch.Tensor]) -> tuple[Any, list[int]]:
    """Return the ONNX model, and which inputs its first outputs are to be written to.

    Its inputs are called arg_0, arg_1 … by position.
    """
    mode = fake_mode()
    run = _Faithful(graph_module)
    with quiet(), replaced(mode, "allow_non_fake_inputs", True):  # constants are no fakes
        try:
            traced, signature = aot_export_module(run, fakes, trace_joint=False, pre_dispatch=True)
        except Exception as e:  # whatever tracing raises
            raise refusal(e, run.interpreter.at) from e
        names = [n.name for n in traced.graph.nodes if n.op == "placeholder"]
        written = [names.index(n) for n in signature.user_inputs_to_mutate.values()]
        program = _fx_passes.decompose_with_registry(_as_program(traced), _registry())
        _fx_passes.insert_type_promotion_nodes(program.graph_module)
        for node in list(program.graph.nodes):
            if node.target in _ASSERTIONS:  # of what guards check, or what cannot fail
                program.graph.erase_node(node)
        program.graph.eliminate_dead_code()
        try:
            model = _core._exported_program_to_onnx_program(program, registry=_registry())
        except ConversionError as e:
            at = _origin(e, program.graph, traced.graph, graph_module.graph)
            raise refusal(e, at) from e
        for value, i in zip(model.model.graph.inputs, range(len(names)), strict=True):
            value.name = f"arg_{i}"
        return model.model_proto, written


def _origin(e: Exception, *graphs: torch.fx.Graph) -> torch.fx.Node | None:
    """Return the node of the last graph that a node named in an error was made from, by each."""
    named = re.search(r"node %(\w+) :", str(e))
    name = named.group(1) if named else ""
    for graph, following in itertools.pairwise(graphs):
        node = next((n for n in graph.nodes if n.name == name), None)
        if node is None or not node.meta.get("from_node"):
            return None
        name = node.meta["from_node"][-1].name
        node = next((n for n in following.nodes if n.name == name), None)
    return node


_ASSERTIONS = {
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
}


def _as_program(traced: torch.fx.GraphModule) -> ExportedProgram:
    """Return the graph as the exporter wants it: a function of its inputs, no more."""
    (end,) = (n for n in traced.graph.nodes if n.op == "output")
    inputs = [
        InputSpec(InputKind.USER_INPUT, TensorArgument(n.name), None)
        for n in traced.graph.nodes
        if n.op == "placeholder"
    ]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(n), None) for n in outputs_of(end)]
    given = tree_structure((tuple(inputs), {}))
    call = ModuleCallSignature([], [], given, tree_structure(tuple(outputs)))
    signature = ExportGraphSignature(inputs, outputs)
    constants = lift_constants_pass(traced, signature, ConstantAttrMap())
    return ExportedProgram(
        root=traced,
        graph=traced.graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", call)],
        constants=constants,
    )


def _argument(node: torch.fx.Node) -> TensorArgument | SymIntArgument:
    number = isinstance(node.meta["val"], torch.SymInt)
    return SymIntArgument(node.name) if number else TensorArgument(node.name)


def _registry() -> Any:
    registry = _common_registry()
    for name, translation in WITH_BACKWARD.items():
        library, _, operator = name.partition("::")
        if (packet := getattr(getattr(torch.ops, library), operator, None)) is not None:
            registry.register_op(packet.default, translation)
    return registry


@functools.cache
def _common_registry() -> Any:
    registry = _registration.ONNXRegistry.from_torchlib()
    for target, translation in {**TRANSLATIONS, **TRAINED}.items():
        registry.register_op(target, translation)
    return registry

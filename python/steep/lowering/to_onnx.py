"""Translates a graph of functional ATen operators to ONNX, by PyTorch's exporter.

Steep's own translations come first (lowering/ops). The exporter and onnxscript take half a second
and 40 MiB to import, so that translation.py imports this file for graphs that the cache lacks.
"""

from __future__ import annotations

import functools
import re

import onnx
import torch
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

from steep.lowering.decompose import decompose
from steep.lowering.exact_constants import constants_with_digits, keep_digits
from steep.lowering.exporter_passes import (
    cast_first,
    clamps_by_numbers,
    drop_assertions,
    make_extents_tensors,
    make_first_operands_tensors,
    promote_clamped,
    promote_operands,
    promote_searched,
    restore,
    say_dtypes,
    trim_sources,
)
from steep.lowering.kernel_refusals import refused_by_kernels
from steep.lowering.narrow_integers import widen_integers, windows_of_integers
from steep.lowering.ops import (
    autograd_function,
    casts,
    cumulative,
    elementwise,
    exact_gradients,
    extent_arithmetic,
    extremes,
    gamma_functions,
    linear_algebra,
    powers,
    quotients,
    reductions,
    resize,
    sort_and_index,
)
from steep.lowering.ops.attention import ATTENTION
from steep.lowering.ops.ctc import CTC
from steep.lowering.ops.extent_arithmetic import count_in_float64
from steep.lowering.ops.grouped_product import WITH_BACKWARD
from steep.lowering.ops.half_precision import compute_in_float32
from steep.lowering.ops.index_bounds import refuse_negative
from steep.lowering.ops.recurrent import RECURRENT, use_recurrent_operators
from steep.lowering.ops.stop_gradient import TRANSLATIONS
from steep.lowering.ops.training_ops import OF_COMPLEX, TRAINED
from steep.lowering.reasons import CannotTranslate
from steep.lowering.without_axes import give_axes
from steep.torch_internals.exporter import (
    ConstantAttrMap,
    ConversionError,
    ONNXRegistry,
    exported_program_to_onnx_program,
    insert_type_promotion_nodes,
    lift_constants_pass,
)
from steep.torch_internals.operators import OpOverload
from steep.torch_internals.pytree import tree_structure


def to_onnx(graph_module: torch.fx.GraphModule) -> onnx.ModelProto:
    """Translate a graph; its inputs are called arg_0, arg_1 … by position. Changes the graph.

    Raises CannotTranslate, or errors of the exporter.
    """
    for node in graph_module.graph.nodes:
        if node.target in sort_and_index.REFUSED:
            what = f"PyTorch's exporter translates {node.target} wrongly for some values"
            raise CannotTranslate(what, node.name)
    for node, why in refused_by_kernels(graph_module.graph):
        raise CannotTranslate(f"PyTorch raises an error for {why}", node.name)
    for node in windows_of_integers(graph_module.graph):
        what = "ONNX has no such operator on whole numbers"
        raise CannotTranslate(what, node.name)
    refuse_negative(graph_module)
    count = sum(n.op == "placeholder" for n in graph_module.graph.nodes)
    use_recurrent_operators(graph_module.graph)
    decompose(graph_module, _registry().is_registered)
    give_axes(graph_module)
    trim_sources(graph_module.graph)
    compute_in_float32(graph_module)
    cast_first(graph_module.graph)
    promote_clamped(graph_module.graph)
    promote_operands(graph_module.graph)
    promote_searched(graph_module.graph)
    say_dtypes(graph_module.graph)
    program = _as_program(graph_module)
    make_first_operands_tensors(program.graph)
    clamps = clamps_by_numbers(program.graph)
    insert_type_promotion_nodes(program.graph_module)
    restore(program.graph, clamps)
    make_extents_tensors(program.graph)
    drop_assertions(program.graph)
    count_in_float64(program.graph)
    try:
        with constants_with_digits():
            model = exported_program_to_onnx_program(program, registry=_registry())
    except ConversionError as e:
        others = {n.name: str(n.target) for n in _find_untranslated(program.graph)}
        raise CannotTranslate(e, _origin(e, program.graph), others) from e
    keep_digits(model.model)
    widen_integers(model.model)
    for value, i in zip(model.model.graph.inputs, range(count), strict=True):
        value.name = f"arg_{i}"
    for node in model.model.graph.all_nodes():  # source locations are half of the bytes
        for name in [k for k in node.metadata_props if not k.startswith("steep.")]:
            del node.metadata_props[name]
    return model.model_proto


def _origin(e: Exception, graph: torch.fx.Graph) -> str:
    """Return the name of the node that the exporter's error names; "" if unknown."""
    match = re.search(r"node %(\w+) :", str(e))
    return match.group(1) if match and any(n.name == match.group(1) for n in graph.nodes) else ""


def _find_untranslated(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return all calls of operators without a translation; the exporter's error names only one."""
    return [
        n
        for n in graph.nodes
        if isinstance(n.target, OpOverload) and not _registry().is_registered(n.target)
    ]


def _as_program(graph_module: torch.fx.GraphModule) -> ExportedProgram:
    """Return the graph as an ExportedProgram, a pure function of its inputs."""
    (end,) = (n for n in graph_module.graph.nodes if n.op == "output")
    inputs = [
        InputSpec(InputKind.USER_INPUT, TensorArgument(n.name), None)
        for n in graph_module.graph.nodes
        if n.op == "placeholder"
    ]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(n), None) for n in end.args[0]]
    structure = tree_structure((tuple(inputs), {}))
    call = ModuleCallSignature([], [], structure, tree_structure(tuple(outputs)))
    signature = ExportGraphSignature(inputs, outputs)
    constants = lift_constants_pass(graph_module, signature, ConstantAttrMap())
    return ExportedProgram(
        root=graph_module,
        graph=graph_module.graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", call)],
        constants=constants,
    )


def _argument(node: torch.fx.Node) -> TensorArgument | SymIntArgument:
    number = isinstance(node.meta["val"], torch.SymInt)
    return SymIntArgument(node.name) if number else TensorArgument(node.name)


def _registry() -> ONNXRegistry:
    registry = _common_registry()
    for name, translation in WITH_BACKWARD.items():
        library, _, operator = name.partition("::")
        if (packet := getattr(getattr(torch.ops, library), operator, None)) is not None:
            registry.register_op(packet.default, translation)
    return registry


@functools.cache
def _common_registry() -> ONNXRegistry:
    registry = ONNXRegistry.from_torchlib()
    tables = (
        TRANSLATIONS,
        TRAINED,
        RECURRENT,
        CTC,
        ATTENTION,
        casts.AS_IN_TORCH,
        cumulative.AS_IN_TORCH,
        powers.AS_IN_TORCH,
        quotients.AS_IN_TORCH,
        exact_gradients.AS_IN_TORCH,
        gamma_functions.GAMMA,
        elementwise.AS_IN_TORCH,
        extremes.AS_IN_TORCH,
        linear_algebra.AS_IN_TORCH,
        reductions.AS_IN_TORCH,
        sort_and_index.AS_IN_TORCH,
        resize.AS_IN_TORCH,
        autograd_function.TRANSLATIONS,
        extent_arithmetic.TRANSLATIONS,
    )
    translations = {target: ours for table in tables for target, ours in table.items()}
    for target, translation in translations.items():
        registry.register_op(target, translation)
    for target, translation in OF_COMPLEX.items():
        registry.register_op(target, translation, is_complex=True)
    return registry

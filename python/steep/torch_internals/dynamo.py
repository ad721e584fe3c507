"""PyTorch's tracer, Dynamo: settings, errors, guards and variable trackers.

Importing this module loads a large part of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo import (
    config,
    convert_frame,
    maybe_mark_dynamic,
    optimize,
    trace_rules,
    utils,
    variables,
)
from torch._dynamo._trace_wrapped_higher_order_op import ModIndex
from torch._dynamo.backends import distributed
from torch._dynamo.bytecode_transformation import Instruction
from torch._dynamo.eval_frame import cached_backends
from torch._dynamo.exc import (
    BackendCompilerFailed,
    ObservedAttributeError,
    ResumePrologueTracingError,
    TorchRuntimeError,
    Unsupported,
    UserError,
    raise_observed_exception,
    unimplemented,
)
from torch._dynamo.guards import (
    DeletedGuardManagerWrapper,
    GuardBuilder,
    _get_closure_vars as get_closure_vars,
    get_guard_fail_reason,
    install_guard,
)
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import (
    AttrSource,
    GlobalSource,
    GlobalStateSource,
    SkipGuardSource,
    TypeDictSource,
    is_from_defaults,
)
from torch._dynamo.symbolic_convert import (
    InliningInstructionTranslator,
    InstructionTranslator,
    InstructionTranslatorBase,
)
from torch._dynamo.types import CacheEntry, ConvertFrameReturn
from torch._dynamo.utils import graph_break_reasons, proxy_args_kwargs
from torch._dynamo.variables import (
    AutogradFunctionVariable,
    BaseListVariable,
    BuiltinVariable,
    CellVariable,
    ConstantVariable,
    ConstDictVariable,
    DeletedVariable,
    ExceptionVariable,
    GetAttrVariable,
    LambdaVariable,
    MethodWrapperVariable,
    NumpyVariable,
    RandomVariable,
    SkipFunctionVariable,
    SymNodeVariable,
    TensorVariable,
    TorchInGraphFunctionVariable,
    TupleVariable,
    UnspecializedNNModuleVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    UserFunctionVariable,
    builder,
    builtin,
    higher_order_ops,
    object_protocol,
)
from torch._dynamo.variables.base import (
    AttributeMutationExisting,
    AttributeMutationNew,
    ValueMutationExisting,
    ValueMutationNew,
    VariableTracker,
)
from torch._dynamo.variables.builtin import SetAttrBuiltinVariable
from torch._dynamo.variables.dicts import SideEffectsProxyDict
from torch._dynamo.variables.functions import (
    CollectiveFunctionRewriteVariable,
    PolyfilledFunctionVariable,
    WrapperUserFunctionVariable,
)
from torch._dynamo.variables.higher_order_ops import (
    AutogradFunctionApplyVariable,
    CheckpointHigherOrderVariable,
)
from torch._dynamo.variables.lazy import LazySymNodeFormatString
from torch._dynamo.variables.tensor import NumpyNdarrayVariable
from torch._guards import Guard, GuardSource, Source
from torch._higher_order_ops.register_hook import register_hook_op

__all__ = [
    "AttrSource",
    "AttributeMutationExisting",
    "AttributeMutationNew",
    "AutogradFunctionApplyVariable",
    "AutogradFunctionVariable",
    "BackendCompilerFailed",
    "BaseListVariable",
    "BuiltinVariable",
    "CacheEntry",
    "CellVariable",
    "CheckpointHigherOrderVariable",
    "CollectiveFunctionRewriteVariable",
    "ConstDictVariable",
    "ConstantVariable",
    "ConvertFrameReturn",
    "DeletedGuardManagerWrapper",
    "DeletedVariable",
    "ExceptionVariable",
    "GetAttrVariable",
    "GlobalSource",
    "GlobalStateSource",
    "Guard",
    "GuardBuilder",
    "GuardSource",
    "InliningInstructionTranslator",
    "Instruction",
    "InstructionTranslator",
    "InstructionTranslatorBase",
    "LambdaVariable",
    "LazySymNodeFormatString",
    "MethodWrapperVariable",
    "ModIndex",
    "NumpyNdarrayVariable",
    "NumpyVariable",
    "ObservedAttributeError",
    "OutputGraph",
    "PolyfilledFunctionVariable",
    "RandomVariable",
    "ResumePrologueTracingError",
    "SetAttrBuiltinVariable",
    "SideEffects",
    "SideEffectsProxyDict",
    "SkipFunctionVariable",
    "SkipGuardSource",
    "Source",
    "SymNodeVariable",
    "TensorVariable",
    "TorchInGraphFunctionVariable",
    "TorchRuntimeError",
    "TupleVariable",
    "TypeDictSource",
    "UnspecializedNNModuleVariable",
    "Unsupported",
    "UserDefinedClassVariable",
    "UserDefinedObjectVariable",
    "UserError",
    "UserFunctionVariable",
    "ValueMutationExisting",
    "ValueMutationNew",
    "VariableTracker",
    "WrapperUserFunctionVariable",
    "builder",
    "builtin",
    "cached_backends",
    "config",
    "convert_frame",
    "distributed",
    "get_closure_vars",
    "get_guard_fail_reason",
    "graph_break_reasons",
    "guard_that",
    "higher_order_ops",
    "install_guard",
    "is_from_defaults",
    "maybe_mark_dynamic",
    "note_backend",
    "object_protocol",
    "optimize",
    "proxy_args_kwargs",
    "raise_observed_exception",
    "register_hook_op",
    "trace_rules",
    "traced_without_cache",
    "unimplemented",
    "utils",
    "variables",
]


def note_backend(callback: Callable[..., Any], backend: Callable[..., Any]) -> None:
    """Tell Dynamo which backend a frame callback belongs to."""
    callback._torchdynamo_orig_backend = backend  # type: ignore[attr-defined]


def guard_that(expression: str, why: str = "") -> None:
    """Add a guard to the graph that is traced: its calls need that a Python expression is true.

    Args:
        expression: of the names of sources, and of ``G``, the globals of the graph.
        why: what PyTorch's logs say beside it.
    """
    text = f"{expression}  # {why}" if why else expression

    def add(builder: GuardBuilder, _: Guard) -> None:
        if (expression, text) not in builder.object_aliasing_guard_codes:
            builder.object_aliasing_guard_codes.append((expression, text))

    install_guard(Guard(GlobalStateSource(), add))


def traced_without_cache(function: Callable[..., object]) -> bool:
    """Return whether Dynamo may ignore the cache of a function: PyTorch's own, and einops'."""
    home = str(getattr(getattr(function, "__wrapped__", function), "__module__", ""))
    allowed: bool = utils.is_lru_cache_wrapper_trace_without_warning_allowed(function)
    return home.partition(".")[0] == "torch" or allowed

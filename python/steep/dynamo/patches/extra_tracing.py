"""Lets Dynamo trace common code that would otherwise break a graph."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch
import torch.nn.functional as F

from steep.dynamo.patches.graph_breaks import refuse_if_used
from steep.dynamo.patches.symbolic_math import function_for, takes_symbols
from steep.patching.substitution import Substitution, replaces, substitute
from steep.patching.torch_versions import TENSOR_GETATTR
from steep.torch_internals.dynamo import (
    AutogradFunctionApplyVariable as _Apply,
    GuardSource,
    InstructionTranslatorBase,
    LambdaVariable,
    LazySymNodeFormatString,
    NumpyVariable,
    OutputGraph,
    SetAttrBuiltinVariable,
    SkipFunctionVariable,
    Source,
    SymNodeVariable,
    TensorVariable,
    TorchInGraphFunctionVariable as _Function,
    UserDefinedClassVariable,
    VariableTracker,
    builder,
    is_from_defaults,
    proxy_args_kwargs,
    unimplemented,
    variables,
)

CALL_SKIPPED = Substitution(
    SkipFunctionVariable,
    "call_function",
    "`warnings.warn` would cut the graph; the warning is given when the graph is made.",
)
CALL_NUMPY = Substitution(
    NumpyVariable,
    "call_function",
    "NumPy's functions of Python numbers would make tensors of them.",
    order=2,
)
CALL_LOSS = Substitution(
    UserDefinedClassVariable,
    "_call_cross_entropy_loss",
    "Options of a `CrossEntropyLoss` that forward creates could not be read.",
)
CALL_FUNCTION = Substitution(
    _Function,
    "call_function",
    "A function of `math` would bind the graph to a number that changes; cuDNN's flags cut the "
    "graph where there is no GPU; `addcdiv` would become three operators, which round thrice; and "
    "a dropout that drops nothing would copy its argument, which PyTorch returns.",
    order=2,
)
FORMAT = Substitution(
    LazySymNodeFormatString,
    "__repr__",
    "A number that changes cannot be formatted; the graph holds for that number.",
)
TO_FLOAT = Substitution(
    SymNodeVariable,
    "nb_float_impl",
    "`float(a > b)` of numbers that change fails; the graph holds for the outcome.",
)
TO_INT = Substitution(
    SymNodeVariable,
    "nb_int_impl",
    "`int(a > b)` of numbers that change fails; the graph holds for the outcome.",
)
IS_CONSTANT = Substitution(
    builder,
    "is_int_specialization_case",
    "A global number that changes would cause a new graph each time.",
)
GET_ATTRIBUTE = Substitution(
    TensorVariable,
    TENSOR_GETATTR,
    "`persistent` of a buffer, which moving a module to a device reads, would cut the graph; and "
    "`retain_grad` behind a graph would see a part of the gradient.",
)
SET_ATTRIBUTE = Substitution(
    SetAttrBuiltinVariable,
    "_call_setattr",
    "`requires_grad = True` of a tensor made in forward would cut the graph. And a graph with "
    "`p.data = …` of a parameter fails as a whole.",
)
APPLY_FUNCTION = Substitution(
    _Apply,
    "call_function",
    "A `torch.autograd.Function` that is given a tensor twice fails.",
)
CHECK_OUTPUTS = Substitution(
    OutputGraph,
    "_check_requires_grad_intermediate_outputs",
    "A tensor that forward makes, and gives a gradient, could not be returned; "
    "`lowering/unsupported.py` finds what gets lost.",
)


@replaces(
    *(CALL_SKIPPED, CALL_NUMPY, CALL_LOSS, CALL_FUNCTION, FORMAT, TO_FLOAT, TO_INT),
    *(IS_CONSTANT, GET_ATTRIBUTE, SET_ATTRIBUTE, APPLY_FUNCTION, CHECK_OUTPUTS),
)
def extra_tracing(whole: bool = True) -> Iterator[None]:
    """Trace the following code without a graph break, or make the graph valid for more calls.

    - A function of ``math`` of a symbolic number. If the function has no symbolic form, PyTorch
      runs the call between two graphs if there may be several (``whole`` is false); else the graph
      is specialised to the number.
    - A number in a module's globals that changes.
    - A symbolic number that is formatted, or a comparison of such numbers that is converted to a
      number: the graph is specialised to the outcome.
    - ``warnings.warn``: the warning is issued once, at capture.
    - NumPy functions of Python numbers.
    - The options of a ``CrossEntropyLoss`` that forward creates.
    - The assignment of a ``Buffer``, as a move to a device does it.
    - cuDNN flags, if there is no GPU.
    - ``addcdiv`` with a factor stays one operator.
    - A dropout that drops nothing returns its argument.
    - A tensor made in forward that gets ``requires_grad``, as in checkpoints, or is returned.
    - A ``torch.autograd.Function`` with the same tensor as two arguments.
    """
    with substitute(
        {
            CALL_SKIPPED: _warn,
            CALL_NUMPY: _calculate,
            CALL_LOSS: _make_loss,
            CALL_FUNCTION: _apart(_Function.call_function, whole),
            FORMAT: _format,
            TO_FLOAT: _of_truth(float, SymNodeVariable.nb_float_impl),
            TO_INT: _of_truth(int, SymNodeVariable.nb_int_impl),
            IS_CONSTANT: _is_constant,
            GET_ATTRIBUTE: _attribute_or(whole),
            SET_ATTRIBUTE: _set_attribute,
            APPLY_FUNCTION: _apply,
            # lowering/unsupported.py detects lost gradients
            CHECK_OUTPUTS: lambda *_: None,
        }
    ):
        yield


_call_skipped = SkipFunctionVariable.call_function
_call_numpy = NumpyVariable.call_function
_call_loss = UserDefinedClassVariable._call_cross_entropy_loss
_getattr = getattr(TensorVariable, TENSOR_GETATTR)
_call_setattr = SetAttrBuiltinVariable._call_setattr
_call_apply = _Apply.call_function


def _warn(
    self: VariableTracker,
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    if self.value is not warnings.warn:
        return _call_skipped(self, tx, args, kwargs)
    if not all(a.is_python_constant() for a in (*args, *kwargs.values())):
        return _call_skipped(self, tx, args, kwargs)  # the warning's text depends on tensor values
    values = [a.as_python_constant() for a in args]
    options = {name: a.as_python_constant() for name, a in kwargs.items()}
    options.pop("stacklevel", None)
    warnings.warn(*values[:2], **options)
    return variables.ConstantVariable.create(None)


def _calculate(
    self: VariableTracker,
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    if isinstance(self.value, numpy.ufunc) and not kwargs:
        numbers = [a.as_python_constant() if a.is_python_constant() else None for a in args]
        if all(type(g) in (int, float) for g in numbers):
            result = self.value(*numbers)
            if isinstance(result, numpy.generic):
                return VariableTracker.build(tx, result.item())
    return _call_numpy(self, tx, args, kwargs)


def _apart(call: Callable[..., VariableTracker], whole: bool) -> Callable[..., VariableTracker]:
    def apart(
        self: VariableTracker,
        tx: InstructionTranslatorBase,
        args: Sequence[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if getattr(self.value, "__module__", "") == "math" and not kwargs:
            args = [a.realize() for a in args]
            if any(isinstance(a, SymNodeVariable) for a in args):
                return _of_symbols(self, tx, args, call, whole)
        if self.value is torch.backends.cudnn.flags and not torch.cuda.is_available():
            return VariableTracker.build(tx, contextlib.nullcontext).call_function(tx, [], {})
        if self.value is torch.addcdiv and "value" in kwargs:
            kwargs = {**kwargs, "out": VariableTracker.build(tx, None)}  # not decomposed
        x = _dropped_nothing(self.value, args, kwargs) if self.value in _TRAINS else None
        return call(self, tx, args, kwargs) if x is None else x

    return apart


_TRAINS = {
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), True),
    **dict.fromkeys((F.alpha_dropout, F.feature_alpha_dropout), False),
}
"""The default of ``training``, by kind of dropout."""

_BATCHED = {F.dropout1d: 3, F.dropout3d: 5}
"""Number of dimensions for which a dropout returns its argument; for others, it returns a view."""


def _dropped_nothing(
    dropout: Callable[..., Any], args: Sequence[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker | None:
    """Return the dropout's input if the dropout returns it unchanged; None if it drops."""
    arguments = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
    numbers = [arguments[n].realize() for n in ("p", "training") if n in arguments]
    x = arguments["input"].realize() if "input" in arguments else None
    if not isinstance(x, TensorVariable) or not all(n.is_python_constant() for n in numbers):
        return None
    rate = arguments["p"].as_python_constant() if "p" in arguments else 0.5
    trains = _TRAINS[dropout]
    if "training" in arguments:
        trains = arguments["training"].as_python_constant()
    if (trains and rate != 0) or not 0 <= rate <= 1:
        return None
    dimensions = x.as_proxy().node.meta["example_value"].dim()
    return x if dimensions == _BATCHED.get(dropout, dimensions) else None


def _of_symbols(
    self: VariableTracker,
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    call: Callable[..., VariableTracker],
    whole: bool,
) -> VariableTracker:
    """Call a function with symbolic numbers, whose values are known when the graph is called."""
    are_numbers = all(isinstance(a, SymNodeVariable) or a.is_python_constant() for a in args)
    function = function_for(self.value, len(args))
    if are_numbers and function is not None:
        proxy = tx.output.create_proxy("call_function", function, *proxy_args_kwargs(args, {}))
        return SymNodeVariable.create(tx, proxy, None)
    if are_numbers and not whole and not takes_symbols(self.value):
        unimplemented(
            gb_type="a function of a number that changes",
            context=self.value.__name__,
            explanation="a graph would hold for one number alone",
            hints=[],
        )
    return call(self, tx, args, {})


def _format(self: VariableTracker) -> str:
    """Format the value of a symbolic number; PyTorch would format its symbol."""
    text: str = self.fmt_var.as_python_constant().format(self.sym_node_var.evaluate_expr())
    return text


def _of_truth(
    kind: type, convert: Callable[..., VariableTracker]
) -> Callable[..., VariableTracker]:
    def convert_truth(self: VariableTracker, tx: InstructionTranslatorBase) -> VariableTracker:
        if isinstance(self.sym_num, torch.SymBool):
            return variables.ConstantVariable.create(kind(self.evaluate_expr()))
        return convert(self, tx)

    return convert_truth


_specializes = builder.is_int_specialization_case


def _is_constant(value: object, source: Source) -> bool:
    is_global = source.guard_source is GuardSource.GLOBAL and not is_from_defaults(source)
    return not is_global and bool(_specializes(value, source))


class _Loss(LambdaVariable):
    """A loss as Dynamo models it: the function that it calls, and its options."""

    def __init__(
        self,
        fn: Callable[..., VariableTracker],
        loss_options: dict[str, VariableTracker],
        **kwargs: object,
    ) -> None:
        super().__init__(fn, **kwargs)
        self.loss_options = loss_options

    def _getattr(self, tx: InstructionTranslatorBase, name: str) -> VariableTracker:
        """Return the value of an option or of another attribute."""
        return self.loss_options[name] if name in self.loss_options else _option(self, tx, name)


_option = getattr(LambdaVariable, TENSOR_GETATTR)
setattr(_Loss, TENSOR_GETATTR, _Loss._getattr)


def _make_loss(
    self: VariableTracker,
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    call = _call_loss(self, tx, args, kwargs)
    names = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
    arguments = {name: variables.ConstantVariable.create(value) for name, value in _OPTIONS.items()}
    arguments |= dict(zip(names, args, strict=False)) | kwargs
    return _Loss(call.fn, {name: arguments[name] for name in _OPTIONS})


_OPTIONS = {"weight": None, "ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}


def _attribute_or(whole: bool) -> Callable[..., VariableTracker]:
    def attribute(
        self: VariableTracker, tx: InstructionTranslatorBase, name: str
    ) -> VariableTracker:
        if name == "retain_grad" and not whole:  # here PyTorch calls retain_grad between two graphs
            refuse_if_used(self, tx, name)
        return _attribute(self, tx, name)

    return attribute


def _attribute(self: VariableTracker, tx: InstructionTranslatorBase, name: str) -> VariableTracker:
    if name == "persistent":  # of a buffer that is an argument of the graph
        example = self.as_proxy().node.meta.get("example_value")
        for n in tx.output.graph.nodes:
            argument = n.meta.get("grapharg")
            if argument is not None and n.meta.get("example_value") is example:
                value = argument.example
                if isinstance(value, torch.nn.Buffer):
                    return variables.ConstantVariable.create(value.persistent)
    return _getattr(self, tx, name)


def _set_attribute(
    self: VariableTracker,
    tx: InstructionTranslatorBase,
    obj: VariableTracker,
    name: VariableTracker,
    value: VariableTracker,
) -> VariableTracker:
    if (
        obj.is_tensor()
        and obj.source is not None
        and name.is_python_constant()
        and name.as_python_constant() == "data"
    ):
        unimplemented(
            gb_type="an assignment to the data of a tensor that is there before the call",
            context=str(obj.source),
            explanation="a graph writes to memory, and hands out no other",
            hints=[],
        )
    if not (
        obj.is_tensor()
        and obj.source is None
        and name.is_python_constant()
        and name.as_python_constant() == "requires_grad"
        and value.is_python_constant()
        and value.as_python_constant() is True
        and torch.is_grad_enabled()
    ):
        return _call_setattr(self, tx, obj, name, value)
    proxy = obj.as_proxy()
    example = proxy.node.meta["example_value"]
    if not example.requires_grad:
        tx.output.create_proxy("call_method", "requires_grad_", (proxy, True), {})
        example.requires_grad_()
        obj.synchronize_attributes(tx)
    return value


def _apply(
    self: VariableTracker,
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    nodes: list[Any] = []
    operands = []
    for arg in (each.realize() for each in args):
        again = arg.is_tensor() and any(arg.as_proxy().node is node for node in nodes)
        # a view, so that the gradients of both uses are summed
        operands.append(arg.call_method(tx, "view_as", [arg], {}) if again else arg)
        if arg.is_tensor():
            nodes.append(arg.as_proxy().node)
    return _call_apply(self, tx, operands, kwargs)

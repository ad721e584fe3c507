"""``torch.autograd.Function`` within a captured graph.

Dynamo captures forward and backward as one graph each. Both become part of the one ONNX graph:
backward reads ``steep::gradient_of(y)``, a placeholder for the gradient of y, and
``steep::with_gradient`` returns the results, whose gradient is that of backward. In the engine
these are ``steep.GradientOf`` and ``steep.WithGradient``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch.autograd.function import FunctionCtx
from torch.fx.node import Argument, Target

from steep.lowering.ops.steep_nodes import steep_node
from steep.lowering.ops.stop_gradient import stop_gradient
from steep.lowering.ops.values import Translation, Value
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    AutogradFunctionVariable,
    InstructionTranslatorBase,
    ModIndex,
    TensorVariable,
    VariableTracker,
    higher_order_ops,
    unimplemented,
)
from steep.torch_internals.functorch import are_transforms_active, autograd_function_apply
from steep.torch_internals.operators import OpOverload

ENABLE_GRAD = Substitution(
    higher_order_ops,
    "dynamo_enable_grad",
    "Dynamo takes each backward for one without gradients of its own.",
)
MATERIALIZE_GRADS = Substitution(
    FunctionCtx,
    "set_materialize_grads",
    "Dynamo loses `set_materialize_grads(False)`; here it cuts the graph.",
)
CALL_APPLY = Substitution(
    AutogradFunctionVariable,
    "call_apply",
    "Of a function within a transform of `torch.func` Dynamo sees forward alone.",
)

_OPERATORS = torch.library.Library("steep", "FRAGMENT")
_OPERATORS.define("gradient_of(Tensor y) -> Tensor")
_OPERATORS.define("with_gradient(Tensor[] y, Tensor[] x, Tensor[] dx, Tensor[] dy) -> Tensor[]")
_OPERATORS.impl("gradient_of", lambda y: y.detach().clone(), "CompositeExplicitAutograd")
_OPERATORS.impl(
    "with_gradient",
    lambda y, x, dx, dy: [t.detach().clone() for t in y],
    "CompositeExplicitAutograd",
)


@replaces(ENABLE_GRAD, MATERIALIZE_GRADS, CALL_APPLY)
def whole_backwards() -> Iterator[None]:
    """Let Dynamo capture a function's backward correctly, or break the graph there.

    Without these changes Dynamo ignores:

    - a backward that is differentiable, or that switches gradients off;
    - ``set_materialize_grads(False)``, after which backward gets None;
    - the backward of a function inside a transform of ``torch.func``, or of a tensor whose history
      comes from a write to its base: Dynamo would differentiate the forward instead.
    """

    def as_it_is(
        tx: InstructionTranslatorBase, enable: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        return enable_grad(tx, enable) if enable else contextlib.nullcontext()

    enable_grad = higher_order_ops.dynamo_enable_grad
    with substitute(
        {
            ENABLE_GRAD: as_it_is,
            MATERIALIZE_GRADS: _set_materialize_grads,
            CALL_APPLY: _call_apply,
        }
    ):
        yield


_set_materialize_grads = torch.compiler.disable(FunctionCtx.set_materialize_grads)
_apply = AutogradFunctionVariable.call_apply


def _call_apply(
    self: AutogradFunctionVariable,
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    # PyTorch's ModIndex (indexing inside vmap): its backward is the derivative of its forward
    if are_transforms_active() and self.fn_cls is not ModIndex:
        unimplemented(
            gb_type="a torch.autograd.Function within a transform of torch.func",
            context=self.fn_cls.__name__,
            explanation="the tracer sees only its forward there",
            hints=[],
        )

    def know_history(variable: VariableTracker) -> None:
        if isinstance(variable, TensorVariable) and variable.requires_grad is False:
            variable.synchronize_attributes(tx)

    VariableTracker.visit(know_history, (args, kwargs))
    return _apply(self, tx, args, kwargs)


class Interpreter(torch.fx.Interpreter):
    """Runs a captured graph; a ``torch.autograd.Function`` keeps its own backward.

    ``numbers`` are tensors that stand for Python numbers.
    """

    def __init__(
        self, graph_module: torch.fx.GraphModule, numbers: list[torch.Tensor] | None = None
    ) -> None:
        super().__init__(graph_module)
        self.numbers = [] if numbers is None else numbers
        # Steep's errors name the operation themselves
        self.extra_traceback = False

    def run_node(self, n: torch.fx.Node) -> object:
        """Run one node."""
        value = super().run_node(n)
        if n.op == "placeholder" and getattr(n.meta.get("grapharg"), "pass_arg_as_tensor", False):
            self.numbers.append(value)
        return value

    def call_function(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> object:
        """Run one call of a function."""
        if target is autograd_function_apply:
            return _run(self.numbers, *args, **kwargs)
        return super().call_function(target, args, kwargs)

    def call_method(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> object:
        """Run one call of a method."""
        if target == "item" and any(args[0] is t for t in self.numbers):
            return args[0]
        return super().call_method(target, args, kwargs)


def _run(
    numbers: list[torch.Tensor],
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    *arguments: object,
    non_differentiable_idx: Sequence[int],
    dirty_idx: Sequence[int] = (),
    **_: object,
) -> object:
    """Return the results of ``forward``, with gradients by ``backward``.

    ``forward`` returns its results and the values that ``backward`` takes after the results'
    gradients; ``backward`` returns a gradient, or None, for each of the arguments.
    """
    if dirty_idx:
        raise RuntimeError("a torch.autograd.Function writes its argument")
    value, saved_values = Interpreter(forward, numbers).run(*arguments)
    single = not isinstance(value, (tuple, list))
    results = [value] if single else list(value)
    constant = set(non_differentiable_idx)
    y = [
        i
        for i, t in enumerate(results)
        if isinstance(t, torch.Tensor) and t.is_floating_point() and i not in constant
    ]
    outputs = [stop_gradient(results[i]) for i in y]
    names = dict(zip(y, (torch.ops.steep.gradient_of(t) for t in outputs), strict=True))
    result_gradients = [
        names[i] if i in names else torch.zeros_like(t) if isinstance(t, torch.Tensor) else None
        for i, t in enumerate(results)
    ]
    constants = {id(results[i]): t for i, t in zip(y, outputs, strict=True)}
    saved_values = [constants.get(id(t), t) for t in saved_values]
    gradients = Interpreter(backward, numbers).run(*result_gradients, *saved_values)
    if not isinstance(gradients, (tuple, list)):
        gradients = (gradients,)
    pairs = [
        (x, stop_gradient(dx.to(x.dtype)))
        for x, dx in zip(arguments, gradients, strict=True)
        if isinstance(x, torch.Tensor) and x.is_floating_point() and dx is not None
    ]
    if y and pairs:
        x, dx = zip(*pairs, strict=True)
        outputs = torch.ops.steep.with_gradient(outputs, list(x), list(dx), list(names.values()))
    for i, t in zip(y, outputs, strict=True):
        results[i] = t
    return results[0] if single else tuple(results)


def replace_value(value: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return ``value`` with the gradient of ``source``, a tensor of the same shape."""
    value = stop_gradient(value.clone())
    name = torch.ops.steep.gradient_of(value)
    (result,) = torch.ops.steep.with_gradient([value], [source], [name], [name])
    typed_result: torch.Tensor = result
    return typed_result


def _gradient_of(y: Value) -> Value:
    return steep_node("GradientOf", [y])[0]


def _with_gradient(
    y: Sequence[Value], x: Sequence[Value], dx: Sequence[Value], dy: Sequence[Value]
) -> Sequence[Value]:
    return steep_node("WithGradient", [*y, *x, *dx, *dy], len(y), outputs=len(y))


TRANSLATIONS: dict[OpOverload, Translation] = {
    torch.ops.steep.gradient_of.default: _gradient_of,
    torch.ops.steep.with_gradient.default: _with_gradient,
}
"""Translations to ONNX by operator."""

"""Graph breaks in place of failures of Dynamo: PyTorch runs the code after the break."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
)

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    CollectiveFunctionRewriteVariable,
    ConstantVariable,
    ConvertFrameReturn,
    GetAttrVariable,
    InstructionTranslatorBase,
    MethodWrapperVariable,
    RandomVariable,
    SymNodeVariable,
    TensorVariable,
    TorchInGraphFunctionVariable as _Function,
    Unsupported,
    VariableTracker,
    unimplemented,
)

CALL_COLLECTIVE = Substitution(
    CollectiveFunctionRewriteVariable,
    "call_function",
    "PyTorch runs collectives: the engine works within one process.",
)
CALL_RANDOM = Substitution(
    RandomVariable,
    "call_method",
    "Dynamo would draw the numbers of a `random.Random` once and for all.",
)
CALL_METHOD = Substitution(
    TensorVariable,
    "call_method",
    "Dynamo fails at some methods whose result depends on tensor values; here they end the graph."
    " And a hook behind a graph that used the tensor would see a part of the gradient.",
    order=1,
)
CALL_FUNCTION = Substitution(
    _Function,
    "call_function",
    "Dynamo fails at some functions whose result depends on tensor values; here they end the "
    "graph.",
    order=1,
)
CALL_SLOT = Substitution(
    MethodWrapperVariable,
    "call_function",
    "Dynamo takes `(3).__add__(n)` for `NotImplemented` where the number `n` is a symbol.",
)
CALL_UNBOUND_SLOT = Substitution(
    GetAttrVariable,
    "call_function",
    "Dynamo takes `int.__add__(3, n)` for a sum of the type, which is `NotImplemented`.",
)


@replaces(CALL_COLLECTIVE, CALL_RANDOM, CALL_METHOD, CALL_FUNCTION, CALL_SLOT, CALL_UNBOUND_SLOT)
def graph_breaks(whole: bool = True) -> Iterator[None]:
    """Break the graph at calls that Dynamo cannot trace but does not refuse.

    - Calls whose result depends on tensor values: Dynamo refuses most of them, and fails at some
      (``tolist`` of ``bincount``, ``combinations``).
    - Methods of a ``random.Random`` that existed before the call: Dynamo would draw the numbers
      once, at capture.
    - Collectives of torch.distributed, which PyTorch runs.
    - Special methods of a number that are called by name, with a number that changes; those of a
      type, as in ``int.__add__(3, n)``, with any.

    If there may be several graphs (``whole`` is false), a hook that Dynamo cannot trace is an error
    on a tensor that the graph has used: the hook would be registered after the graph, and would
    miss the gradient of those uses. PyTorch then runs the whole function.
    """
    with substitute(
        {
            CALL_COLLECTIVE: _between_processes,
            CALL_RANDOM: _of_this_call(RandomVariable.call_method),
            CALL_METHOD: _cut(_hooked_in_time(TensorVariable.call_method, whole)),
            CALL_FUNCTION: _cut(_Function.call_function),
            CALL_SLOT: _implemented(MethodWrapperVariable.call_function),
            CALL_UNBOUND_SLOT: _implemented(GetAttrVariable.call_function, bound=False),
        }
    ):
        yield


def _cut(call: Callable[..., VariableTracker]) -> Callable[..., VariableTracker]:
    def cutting(
        self: VariableTracker, tx: InstructionTranslatorBase, *arguments: object
    ) -> VariableTracker:
        try:
            return call(self, tx, *arguments)
        except (GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound) as e:
            unimplemented(
                gb_type="a call that has to know what depends on values",
                context=f"{self}",
                explanation=str(e).partition("\n")[0],
                hints=[],
                from_exc=e,
            )

    return cutting


def _implemented(
    call: Callable[..., VariableTracker], bound: bool = True
) -> Callable[..., VariableTracker]:
    def calling(
        self: VariableTracker,
        tx: InstructionTranslatorBase,
        args: Sequence[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        result = call(self, tx, args, kwargs)
        is_refused = isinstance(result, ConstantVariable) and result.value is NotImplemented
        if is_refused and (not bound or any(isinstance(a, SymNodeVariable) for a in args)):
            unimplemented(
                gb_type="a special method of a number, called by name",
                context=f"{self}",
                explanation="PyTorch's tracer would take its result for NotImplemented",
                hints=[],
            )
        return result

    return calling


def _hooked_in_time(
    call: Callable[..., VariableTracker], whole: bool
) -> Callable[..., VariableTracker]:
    def calling(
        self: VariableTracker, tx: InstructionTranslatorBase, name: str, *arguments: object
    ) -> VariableTracker:
        try:
            return call(self, tx, name, *arguments)
        except Unsupported:
            if name == "register_hook" and not whole:
                refuse_if_used(self, tx, name)
            raise

    return calling


def refuse_if_used(tensor: VariableTracker, tx: InstructionTranslatorBase, what: str) -> None:
    """Raise RuntimeError if the graph has already used a tensor that it makes.

    ``what`` is a method that reads the tensor's gradient, such as "register_hook". PyTorch would
    call it after the graph, where the gradient of the earlier uses does not pass.
    """
    if tensor.source is None and tensor.as_proxy().node.users:
        where = f"{tx.f_code.co_filename}:{tx.lineno}"
        raise RuntimeError(f"{what} of a tensor that was used before ({where}): move it there")


def _of_this_call(call: Callable[..., VariableTracker]) -> Callable[..., VariableTracker]:
    def cutting(
        self: VariableTracker, tx: InstructionTranslatorBase, name: str, *arguments: object
    ) -> VariableTracker:
        if self.source is None:
            return call(self, tx, name, *arguments)
        unimplemented(
            gb_type="a random.Random that is there before the call",
            context=name,
            explanation="its state is no part of the graph",
            hints=[],
        )

    return cutting


def _between_processes(
    self: VariableTracker, tx: InstructionTranslatorBase, *arguments: object
) -> VariableTracker:
    unimplemented(
        gb_type="a collective of torch.distributed",
        context=self.fn.__name__,
        explanation="the engine runs in one process",
        hints=[],
    )


def left_to_pytorch(e: Exception, *, for_good: bool) -> ConvertFrameReturn:
    """Return a result that makes PyTorch run the function at which Dynamo failed.

    ``for_good``: at every call; otherwise at this call only, whose arguments may be wrong.
    """
    reason = f"the tracer fails: {type(e).__name__}"
    return ConvertFrameReturn(skip_reason=reason, apply_to_code=for_good)


def left_this_time() -> ConvertFrameReturn:
    """Return a result that makes PyTorch run this call of a function, since no graph of it fits.

    Functions that it calls are captured; the function's graphs run again when they fit. Other calls
    are unaffected, since other modules may have the same function.
    """
    return ConvertFrameReturn(apply_to_code=False, skip_reason="too many graphs")

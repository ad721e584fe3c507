"""Functions with a cache (``functools.lru_cache``, ``functools.cache``), which Dynamo ignores."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import (
    BaseListVariable,
    ConstantVariable,
    GlobalSource,
    InstructionTranslatorBase,
    SymNodeVariable,
    TupleVariable,
    VariableTracker,
    WrapperUserFunctionVariable,
    guard_that,
    traced_without_cache,
    unimplemented,
)
from steep.torch_internals.tensors import version_of

CALL_CACHED = Substitution(
    WrapperUserFunctionVariable,
    "call_function",
    "Dynamo would trace a function with a cache anew for each graph: what the cache keeps would "
    "follow the state that the function reads.",
)

_call = WrapperUserFunctionVariable.call_function
_RandomState = tuple[torch.Tensor, tuple[Any, ...]]
_LITERALS = (int, float, str, bytes, bool, type(None), torch.dtype, torch.device)


_asked: weakref.WeakKeyDictionary[Callable[..., Any], set[str]] = weakref.WeakKeyDictionary()
"""For each function with a cache, the arguments with which graphs call it."""


@replaces(CALL_CACHED)
def cached_functions(whole: bool = True) -> Iterator[None]:
    """Call a function with a cache as eager mode does, and guard on what it returns.

    The function itself is called at the capture, so that its cache is filled as in eager mode. The
    guard calls it again: a cache returns the same object as before. PyTorch runs the call between
    two graphs if its arguments are made in forward; if forward has changed an object or written a
    tensor before, which the function may read; or if the cache keeps fewer results than graphs
    ask for. So it does if an argument is a number that changes and there may be several graphs
    (``whole`` is false); else the graph is specialised to the number.

    Random numbers that the function draws stay drawn after the capture. At the capture it draws
    them before all that forward itself draws. A function that raises is called once more.
    """
    drawn: list[_RandomState] = []

    def call(
        self: WrapperUserFunctionVariable,
        tx: InstructionTranslatorBase,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if self.attr_to_trace != "__wrapped__" or traced_without_cache(self.wrapper_obj):
            return _call(self, tx, args, kwargs)
        if whole:
            args = [_number(a) for a in args]
            kwargs = {name: _number(a) for name, a in kwargs.items()}
        return _call_for_real(self, tx, args, kwargs, drawn)

    with substitute({CALL_CACHED: call}):
        yield
    for of_torch, of_python in drawn[-1:]:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)


def _call_for_real(
    self: WrapperUserFunctionVariable,
    tx: InstructionTranslatorBase,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker],
    drawn: list[_RandomState],
) -> VariableTracker:
    function, output = self.wrapper_obj, tx.output
    effects = output.side_effects
    if any(effects.is_modified(v) for v in effects.id_to_variable.values() if v.source):
        _left_to_pytorch(function, "forward has changed an object before, which it may read")
    if any(_is_written(node) for node in output.root_tracer.graph.find_nodes(op="placeholder")):
        _left_to_pytorch(function, "forward has written a tensor before, which it may read")
    operands = [_operand(function, a.realize()) for a in (*self.self_args(), *args)]
    named = {name: _operand(function, a.realize()) for name, a in kwargs.items()}
    texts = [text for _, text in operands] + [f"{n}={text}" for n, (_, text) in named.items()]
    callee = f"G[{output.install_global_by_id('steep_cached', function)!r}]"
    call = f"{callee}({', '.join(texts)})"
    _require_kept(function, ", ".join(texts))
    before = torch.get_rng_state(), random.getstate()
    try:
        result = function(*(v for v, _ in operands), **{n: v for n, (v, _) in named.items()})
    except Exception as e:  # noqa: BLE001 - the user's function may raise anything
        _left_to_pytorch(function, f"it raises {type(e).__name__}", e)
    after = torch.get_rng_state(), random.getstate()
    if before[1] != after[1] or not torch.equal(before[0], after[0]):
        drawn.append(after)
    same = ""  # that the name still leads to this function, alone or as a method
    if name := _name_of(self):
        same = f"getattr({name}, '__func__', {name}) is {callee} and "
    if _is_literal(result):
        guard_that(f"{same}repr({call}) == {repr(result)!r}", "as cached")
        return VariableTracker.build(tx, result)
    kept = output.install_global_by_id("steep_kept", result)
    guard_that(f"{same}{call} is G[{kept!r}]", "as cached")
    return VariableTracker.build(tx, result, GlobalSource(kept))


def _require_kept(function: Callable[..., Any], arguments: str) -> None:
    """Leave a call to PyTorch if guards would evict what other guards ask for."""
    asked = _asked.setdefault(function, set())
    asked.add(arguments)
    most = function.cache_parameters()["maxsize"]  # type: ignore[attr-defined]
    if most is not None and len(asked) > most:
        _left_to_pytorch(function, f"its cache keeps {most} results, and graphs ask for more")


def _is_written(placeholder: torch.fx.Node) -> bool:
    example = placeholder.meta.get("example_value")
    return isinstance(example, torch.Tensor) and version_of(example) > 0


def _number(variable: VariableTracker) -> VariableTracker:
    """Return a number that changes as the one of this call, also within a tuple."""
    variable = variable.realize()
    if isinstance(variable, TupleVariable):
        return variable.clone(items=[_number(v) for v in variable.items])
    if isinstance(variable, SymNodeVariable):
        return ConstantVariable.create(variable.evaluate_expr())
    return variable


def _operand(function: Callable[..., Any], variable: VariableTracker) -> tuple[Any, str]:
    """Return the value of an argument, and the expression of it in a guard."""
    if variable.is_python_constant():
        value = variable.as_python_constant()
        if _is_literal(value):
            return value, _literal(value)
    elif variable.source and _is_object(variable):
        value = variable.value
    else:
        _left_to_pytorch(function, "an argument is made in forward, or changes")
    if not (text := _name_of(variable)):
        _left_to_pytorch(function, "an argument is made in forward")
    return value, text


def _is_object(variable: VariableTracker) -> bool:
    # the value of a list with a number that changes raises an error
    is_array = variable.is_tensor() or isinstance(variable, BaseListVariable)
    return not is_array and hasattr(variable, "value")


def _literal(value: object) -> str:
    if type(value) is tuple:
        return f"({''.join(f'{_literal(v)}, ' for v in value)})"
    # nan and inf are no literals of Python
    return f"float({str(value)!r})" if isinstance(value, float) else repr(value)


def _is_literal(value: object) -> bool:
    if isinstance(value, tuple) and type(value) in (tuple, torch.Size):
        return all(_is_literal(v) for v in value)
    return type(value) in _LITERALS


def _name_of(variable: VariableTracker) -> str:
    try:
        return str(variable.source.name) if variable.source is not None else ""
    except NotImplementedError:  # a source that guards cannot read
        return ""


def _left_to_pytorch(
    function: Callable[..., Any], why: str, e: Exception | None = None
) -> NoReturn:
    unimplemented(
        gb_type="a call of a function with a cache",
        context=str(getattr(function, "__name__", function)),
        explanation=f"PyTorch calls it: {why}",
        hints=[],
        from_exc=e,
    )
    raise AssertionError  # unimplemented raises

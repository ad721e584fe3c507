"""``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` as ONNX's operators of these names.

PyTorch's tracers expand them step by step, with a graph for every length. Operators of Steep take
their places, for which tracers know only the shapes and dtypes of the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch

from steep.lowering.ops.onnx_script import opset18
from steep.lowering.ops.values import Operator, Translation, Value, ints, number
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.operators import DISPATCH_CACHE, OpOverload, aten, name_of, schema_of

_LIBRARY = torch.library.Library("steep", "FRAGMENT")
# by PyTorch's name: ONNX's name, PyTorch's gate at each of ONNX's positions, attributes
_CELLS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "lstm": ("LSTM", [0, 3, 1, 2], {}),
    "gru": ("GRU", [1, 0, 2], {"linear_before_reset": 1}),
    "rnn_tanh": ("RNN", [0], {"activations": ["Tanh"]}),
    "rnn_relu": ("RNN", [0], {"activations": ["Relu"]}),
}


def use_recurrent_operators(graph: torch.fx.Graph) -> None:
    """Replace recurrent layers in a graph of ATen operators by Steep's operators."""
    for node in graph.nodes:
        node.target = _OURS.get(node.target, node.target)


def _define(name: str) -> OpOverload:
    schema = str(schema_of(getattr(aten, name).input))
    _LIBRARY.define(schema.replace(f"aten::{name}.input", name))
    _LIBRARY.impl(name, _empty, "Meta")
    # the results need an autograd history, but tracing never runs this backward
    torch.library.register_autograd(f"steep::{name}", _no_gradients, lib=_LIBRARY)
    return getattr(torch.ops.steep, name).default


def _no_gradients(*_: object) -> NoReturn:
    raise NotImplementedError


def _empty(  # noqa: PLR0917, as ATen has it
    input: torch.Tensor,
    hx: torch.Tensor | Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return empty tensors with the shapes and dtypes of the results."""
    states = [hx] if isinstance(hx, torch.Tensor) else hx
    width = (1 + bidirectional) * states[0].shape[2]
    y = input.new_empty((*input.shape[:2], width))
    return y, *(torch.empty_like(state) for state in states)


def _translation(name: str) -> Translation:
    of_onnx, gates, attributes = _CELLS[name]

    def translate(  # noqa: PLR0917, as ATen has it
        input: Value,
        hx: Value | list[Value] | tuple[Value, ...],
        params: Sequence[Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Value, ...]:
        if len(params) != num_layers * (1 + bidirectional) * (4 if has_biases else 2):
            raise NotImplementedError("a recurrent layer with a projection (proj_size)")
        states = hx if isinstance(hx, (list, tuple)) else [hx]
        directions, width = 1 + bidirectional, states[0].shape[2]
        options = {
            **{k: v * directions if isinstance(v, list) else v for k, v in attributes.items()},
            "direction": "bidirectional" if bidirectional else "forward",
            "hidden_size": width,
        }
        x = opset18.Transpose(input, perm=[1, 0, 2]) if batch_first else input
        rest, last = iter(params), []
        for layer in range(num_layers):
            kinds: list[list[Value]] = [[], [], []]  # weights of the input, of the state, biases
            for _ in range(directions):
                kinds[0].append(_order(next(rest), gates))
                kinds[1].append(_order(next(rest), gates))
                if has_biases:
                    both = [_order(next(rest), gates) for _ in range(2)]
                    kinds[2].append(opset18.Concat(*both, axis=0))
            first, end = ints(layer * directions), ints((layer + 1) * directions)
            of_layer = [opset18.Slice(state, first, end, ints(0)) for state in states]
            weights = [_stack(some) if some else None for some in kinds]
            operator: Operator = getattr(opset18, of_onnx)
            y, *after = operator(x, *weights, None, *of_layer, **options)
            last.append(after)
            flat = opset18.Constant(value_ints=[0, 0, directions * width])
            x = opset18.Reshape(opset18.Transpose(y, perm=[0, 2, 1, 3]), flat)
            if train and dropout and layer + 1 < num_layers:
                rate, training = number(dropout, input), opset18.Constant(value_int=1)
                x, _ = opset18.Dropout(x, rate, opset18.Cast(training, to=9))
        y = opset18.Transpose(x, perm=[1, 0, 2]) if batch_first else x
        return y, *(opset18.Concat(*of_layers, axis=0) for of_layers in zip(*last, strict=True))

    return translate


def _order(weight: Value, gates: list[int]) -> Value:
    """Return a weight or bias with its gates (blocks of rows) in ONNX's order."""
    if len(gates) == 1:
        return weight
    blocks = opset18.Split(weight, num_outputs=len(gates), axis=0)
    return opset18.Concat(*(blocks[gate] for gate in gates), axis=0)


def _stack(of_directions: list[Value]) -> Value:
    return opset18.Concat(*(opset18.Unsqueeze(w, ints(0)) for w in of_directions), axis=0)


_OURS = {getattr(aten, name).input: _define(name) for name in _CELLS}

KERNELS = {
    operator: Substitution(
        operator,
        "py_kernels",
        "Tracers write a recurrent layer out step by step, a graph for every length.",
    )
    for operator in _OURS
}
DISPATCH_CACHES = {
    operator: Substitution(
        operator, DISPATCH_CACHE, "It has the kernels of this operator that were looked up."
    )
    for operator in _OURS
}


@replaces(*KERNELS.values(), *DISPATCH_CACHES.values())
def keep_recurrent_layers() -> Iterator[None]:
    """Keep tracers from expanding recurrent layers, which specialises the graph to the length."""
    kernels = {
        KERNELS[operator]: dict.fromkeys(operator.py_kernels, ours)
        for operator, ours in _OURS.items()
    }
    with substitute({**kernels, **{cache: {} for cache in DISPATCH_CACHES.values()}}):
        yield


RECURRENT: dict[OpOverload, Translation] = {
    ours: _translation(name_of(ours)) for ours in _OURS.values()
}
"""Translations by operator."""

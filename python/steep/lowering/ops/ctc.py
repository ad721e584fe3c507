"""The loss of connectionist temporal classification (CTC), as a Scan over time.

PyTorch's tracers record it as one operator, which ONNX does not have. ``steep::ctc_losses`` takes
its place, with the recursion of Graves et al. (2006), "Connectionist Temporal Classification": α[s]
is the log probability of state s in the sequence blank, label, blank, …, blank.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from typing import NoReturn

import torch

from steep.lowering.ops.onnx_script import evaluator, exporter, ir, opset18
from steep.lowering.ops.stop_gradient import detach, stop_gradient
from steep.lowering.ops.values import Operator, Translation, Value, ints, number
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dispatch import fake_impls
from steep.torch_internals.operators import OpOverload, aten

_NEVER = -1e30  # stands for log 0; finite, so that differences are defined
_OPERATORS = torch.library.Library("steep", "FRAGMENT")
_OPERATORS.define(
    "ctc_losses(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths,"
    " int blank) -> Tensor"
)
_OPERATORS.impl("ctc_losses", lambda p, *_: p.new_empty((p.shape[1],)), "Meta")


def _no_gradients(*_: object) -> NoReturn:
    raise NotImplementedError


# the result needs an autograd history, but tracing never runs this backward
torch.library.register_autograd("steep::ctc_losses", _no_gradients, lib=_OPERATORS)


def ctc_losses(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *,
    blank: int,
    zero_infinity: bool,
) -> torch.Tensor:
    """Return -log p of each target, [N], for log_probs [T, N, C], with PyTorch's gradient.

    ``targets`` are [N, S], or [sum of target_lengths]; lengths are integers, [N]. Where no
    alignment is possible the loss is infinite, or 0 with ``zero_infinity``.
    """
    losses = torch.ops.steep.ctc_losses(log_probs, targets, input_lengths, target_lengths, blank)
    # PyTorch's gradient is that with respect to x, assuming that log_probs is log_softmax(x).
    times = torch.arange(log_probs.shape[0])[:, None, None]
    total = torch.where(times < input_lengths[None, :, None], log_probs.exp(), 0.0).sum((0, 2))
    impossible = losses > -_NEVER / 2
    losses = losses + (total - stop_gradient(total))
    if zero_infinity:
        return torch.where(impossible, 0.0, losses)
    return losses * torch.where(impossible, math.inf, 1.0)


_THEIRS = (aten._ctc_loss.default, aten._ctc_loss.Tensor)

FAKES = {
    operator: Substitution(
        fake_impls,
        "op_implementations_dict",
        "Tracers do not know the extents of what this operator gives.",
        absent=True,
        key=operator,
    )
    for operator in _THEIRS
}


@replaces(*FAKES.values())
def known_to_tracers() -> Iterator[None]:
    """Tell tracers the shapes of ``_ctc_loss``'s results; the second result gets an extent of 1."""
    with substitute(dict.fromkeys(FAKES.values(), _empty)):
        yield


def _empty(
    mode: contextlib.AbstractContextManager[object],
    operator: OpOverload,
    log_probs: torch.Tensor,
    *_: object,
    **__: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = log_probs.shape[1:-1]
    with mode:
        return log_probs.new_empty(rows), log_probs.new_empty((*rows, log_probs.shape[0], 1))


# --- in ONNX -------------------------------------------------------------------------------------


def _loss(
    log_probs: Value, targets: Value, input_lengths: Value, target_lengths: Value, blank: int
) -> Value:
    lengths, times = (opset18.Cast(n, to=7) for n in (target_lengths, input_lengths))
    longest = opset18.ReduceMax(lengths, keepdims=1)
    rows = opset18.Shape(log_probs, start=1, end=2)
    column = ints(1)
    of_row = opset18.Unsqueeze(lengths, column)
    labels = _labels(opset18.Cast(targets, to=7), lengths, longest, blank, len(targets.shape))
    states = opset18.Add(opset18.Add(longest, longest), column)
    blanks = _fill(blank, rows, longest)
    pairs = opset18.Concat(*(opset18.Unsqueeze(t, ints(2)) for t in (blanks, labels)), axis=2)
    flat = opset18.Reshape(pairs, opset18.Concat(rows, opset18.Add(longest, longest), axis=0))
    path = opset18.Concat(flat, _fill(blank, rows, column), axis=1)  # blank, label, …, blank

    def later(values: Value, by: int, fill: Value) -> Value:
        """Return, for each state, the value ``by`` states before."""
        longer = opset18.Concat(opset18.Expand(fill, opset18.Concat(rows, ints(by), axis=0)),
                                values, axis=1)  # fmt: skip
        return opset18.Slice(longer, ints(0), states, column)

    mark = opset18.Constant(value_int=blank)
    differs = opset18.Not(opset18.Equal(path, later(path, 2, mark)))
    skips = opset18.And(opset18.Not(opset18.Equal(path, mark)), differs)
    shape = opset18.Shape(log_probs, start=0, end=1)
    index = opset18.Expand(
        opset18.Unsqueeze(path, ints(0)), opset18.Concat(shape, rows, states, axis=0)
    )
    emissions = opset18.GatherElements(log_probs, index, axis=2)  # [T, N, states]
    count = opset18.Range(
        *(opset18.Constant(value_int=0), opset18.Squeeze(shape), opset18.Constant(value_int=1))
    )
    live = opset18.Less(opset18.Unsqueeze(count, column), opset18.Unsqueeze(times, ints(0)))
    live = opset18.Unsqueeze(live, ints(2))  # [T, N, 1]
    never = number(_NEVER, log_probs)
    start = opset18.Concat(
        opset18.Expand(number(0.0, log_probs), opset18.Concat(rows, column, axis=0)),
        opset18.Expand(never, opset18.Concat(rows, opset18.Add(longest, longest), axis=0)),
        axis=1,
    )  # α before the first time step

    def step(alpha: Value, emission: Value, is_live: Value) -> Value:
        two_back = opset18.Where(skips, later(alpha, 2, never), never)
        came = _log_sum(alpha, later(alpha, 1, never), two_back)
        return opset18.Where(is_live, opset18.Add(came, emission), alpha)

    kinds = [log_probs.dtype, log_probs.dtype, ir.DataType.BOOL]
    alpha = _scan(step, start, [emissions, live], kinds)
    end = opset18.Add(of_row, of_row)
    first = opset18.Sub(end, ints(1))
    before = opset18.GatherElements(alpha, opset18.Max(first, ints(0)), axis=1)
    before = opset18.Where(opset18.Less(first, ints(0)), never, before)
    likelihood = _log_sum(opset18.GatherElements(alpha, end, axis=1), before)
    return opset18.Neg(opset18.Squeeze(likelihood, column))


def _labels(targets: Value, lengths: Value, longest: Value, blank: int, rank: int) -> Value:
    """Return the labels, [N, longest], with ``blank`` after the length of each row."""
    one = opset18.Constant(value_int=1)
    positions = opset18.Range(opset18.Constant(value_int=0), opset18.Squeeze(longest), one)
    of_row = opset18.Unsqueeze(lengths, ints(1))
    if rank == 1:  # concatenated targets
        ends = opset18.CumSum(lengths, opset18.Constant(value_int=0))
        starts = opset18.Unsqueeze(opset18.Sub(ends, lengths), ints(1))
        last = opset18.Sub(opset18.Shape(targets), ints(1))
        index = opset18.Min(opset18.Add(starts, positions), last)
        labels = opset18.Gather(targets, index, axis=0)
    else:
        labels = opset18.Slice(targets, ints(0), longest, ints(1))
    is_label = opset18.Less(opset18.Unsqueeze(positions, ints(0)), of_row)
    return opset18.Where(is_label, labels, opset18.Constant(value_int=blank))


def _log_sum(*values: Value) -> Value:
    """Return log Σ exp(values); at least one value must be finite."""
    most = detach(opset18.Max(*values))
    terms = [opset18.Exp(opset18.Sub(v, most)) for v in values]
    return opset18.Add(most, opset18.Log(opset18.Sum(*terms)))


def _fill(value: int, *shape: Value) -> Value:
    return opset18.Expand(opset18.Constant(value_int=value), opset18.Concat(*shape, axis=0))


_numbers = itertools.count()


def _scan(step: Operator, state: Value, sequences: list[Value], kinds: list[ir.DataType]) -> Value:
    """Return the last state of a Scan of ``step`` over slices of ``sequences`` along axis 0.

    ``kinds`` are the dtypes of the state and of each sequence.
    """
    recorder: exporter.building.OpRecorder = evaluator.default()
    prefix = f"ctc_{next(_numbers)}_"
    inputs = [
        exporter.SymbolicTensor(recorder.opset, f"{prefix}given_{i}")
        for i in range(1 + len(sequences))
    ]
    for value, kind in zip(inputs, kinds, strict=True):
        value.dtype = kind
    outside = len(recorder.nodes)
    result = step(*inputs)
    body = recorder.nodes[outside:]
    del recorder.nodes[outside:]
    for i, value in enumerate(v for node in body for v in node.outputs):
        value.name = f"{prefix}{i}"
    graph = ir.Graph(inputs, [result], nodes=body, name=f"{prefix}step")
    attributes = [ir.AttrGraph("body", graph), ir.AttrInt64("num_scan_inputs", len(sequences))]
    last = exporter.SymbolicTensor(recorder.opset)
    recorder.nodes.append(
        ir.Node("", "Scan", [state, *sequences], attributes, outputs=[last], version=18)
    )
    return last


CTC: dict[OpOverload, Translation] = {torch.ops.steep.ctc_losses.default: _loss}
"""Translations by operator."""

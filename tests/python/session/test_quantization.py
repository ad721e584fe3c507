"""Models that quantise and read back, as quantisation-aware training exports them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from steep import _steep


def model(scale, zero, *, axis=1, copies=False):
    """x → QuantizeLinear → DequantizeLinear → y; each with constants of its own if `copies`."""
    tensors = [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(zero, "z")]
    second = ["s", "z"]
    if copies:
        tensors += [numpy_helper.from_array(scale, "s2"), numpy_helper.from_array(zero, "z2")]
        second = ["s2", "z2"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis),
        helper.make_node("DequantizeLinear", ["q", *second], ["y"], axis=axis),
    ]
    inout = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["a", 3]) for n in "xy"]
    graph = helper.make_graph(nodes, "fake", inout[:1], inout[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_gradient_passes_straight_where_nothing_is_clipped(per_channel, copies):
    scale = np.array([0.5, 0.25, 0.125] if per_channel else 0.25, np.float32)
    zero = np.array([3, 0, -2] if per_channel else 1, np.int8)
    proto = model(scale, zero, copies=copies)
    program = _steep.ModuleProgram(proto.SerializeToString(), ["x"], ["x"])
    x = np.linspace(-70, 70, 18, dtype=np.float32).reshape(6, 3)
    dy = np.arange(18, dtype=np.float32).reshape(6, 3)
    outputs, run, _ = program.forward([x], True)
    dx = program.backward(run, [dy])[0]

    t = torch.tensor(x, requires_grad=True)
    if per_channel:
        wanted = torch.fake_quantize_per_channel_affine(
            t, torch.tensor(scale), torch.tensor(zero).int(), 1, -128, 127
        )
    else:
        wanted = torch.fake_quantize_per_tensor_affine(t, float(scale), int(zero), -128, 127)
    wanted.backward(torch.tensor(dy))
    assert torch.equal(torch.from_dlpack(outputs[0]), wanted.detach())
    assert torch.equal(torch.from_dlpack(dx), t.grad)
    assert (t.grad == 0).any()
    assert (t.grad != 0).any()

"""The gradient of each row as an ONNX model, extents unknown, in ONNX Runtime and in Steep."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from each_row import each_row
from nodes import TABLE, evaluate, gradients
from onnx import TensorProto, helper, numpy_helper
from rows import ROWS

import steep

# What ONNX Runtime refuses, finds elsewhere (NaN), or computes otherwise in forward already.
THEIRS_DIFFERS = {
    "NegativeLogLikelihoodLoss-0x3_i8:[]-reduction=sum",
    "MaxPool-1x1x4-kernel_shape=[2]-NaN",
    "Resize-1x1x5x6_-_-_i8:[1, 1, 3, 1]-mode=cubic,"
    "coordinate_transformation_mode=pytorch_half_pixel",
    "Pad-2x3_i8:[0, -1, 1, 1]-mode=wrap-[0, -1, 1, 1]",  # it cuts before it wraps
    "Pad-4x0_i8:[1, 0, 1, 0]-mode=wrap-[1, 0, 1, 0]",
    "TensorScatter-2x0x3_2x0x3_i8:[0, 0]-mode=circular",  # it refuses a divisor of nothing
    # Products over no rows are not zeroed there.
    "Attention-1x2x0x4_1x2x5x4_1x2x5x2-scale=0.25-no query",
    # Reshapes copy an extent where they are given a 0.
    "Attention-1x2x3x4_1x2x0x4_1x2x0x2-scale=0.25-no key",
    "Attention-2x4x2x2_2x2x0x2_2x2x0x3-scale=0.25,is_causal=1-no key",
    "GridSample-2x3x4x5_2x2x3x2-mode=cubic,padding_mode=border,align_corners=0-within 1.3",
    "GridSample-2x3x4x5_2x2x3x2-mode=cubic,padding_mode=border,align_corners=1-within 1.3",
    "GridSample-1x1x3x3_1x1x4x2-mode=linear-not finite",
    "Conv-1x2x5x4_3x2x3x2-auto_pad=SAME_UPPER,dilations=[2, 1]",
    "GlobalAveragePool-2x3x0",  # the mean of nothing
    *(f"Resize-1x1x4x3_-_-_i8:[1, 1, 0, 5]-mode={mode}" for mode in ("nearest", "linear")),
    *(  # Products of nothing are refused there, or not zeroed.
        f"AffineGrid-{grid}-align_corners={align}"
        for grid in ("0x2x3_i8:[0, 3, 2, 3]", "2x2x3_i8:[2, 3, 0, 4]", "0x3x4_i8:5")
        for align in (0, 1)
    ),
}

# Whose gradient takes shape only when the extents are known; all others leave them open.
NEEDS_EXTENTS = {
    "CausalConvWithState",  # its function groups by the number of channels
    # auto_pad, which depends on the extents where the stride is not 1
    "AveragePool",
    "Conv",
    "ConvTranspose",
    "LpPool",
    "DFT",  # the number of samples is a factor
    "DeformConv",
    "Det",  # a second derivative of matrices of any size
    "MaxUnpool",  # output_shape
    "STFT",
}

# Without batches in front; it clips other numbers, and forgets the state of what has no steps.
LAYERS = {"GRU", "LSTM", "RNN"}
SCANNED = LAYERS | {"CumProd"}
# Products over nothing are refused there, or not zeroed. So are convolutions.
EMPTY_DIFFERS = {"DeformConv", "LRN", "Resize"}
# Heads side by side are parted by a reshape to -1, which it refuses beside an extent of 0.
HEADS_ASIDE = {"Attention", "LinearAttention", "RotaryEmbedding"}


def differentiable(row) -> bool:
    return not ("." in row.op or TABLE.get(row.op, {}).get("stops_gradient") or row.double)


def agrees(row, arrays, results) -> bool:
    """Whether ONNX Runtime is known to find the same."""
    empty = any(x is not None and x.size == 0 for x in arrays)
    first = arrays[0]
    if (row.op.startswith("Conv") or row.op in EMPTY_DIFFERS) and first.size == 0:
        return False
    more = row.attrs.get("output_padding", [])
    strides = row.attrs.get("strides", [1] * len(more))
    if any(m >= s for m, s in zip(more, strides, strict=False)):
        return False  # it refuses such paddings
    if row.op == "MaxUnpool" and len(arrays) == 3:
        return False  # indices count in another array there
    if row.op == "GridSample" and first.ndim == 3:
        return False  # it does not sample vectors
    if row.op in HEADS_ASIDE and first.ndim == 3 and empty:
        return False
    if row.op in SCANNED and first.size == 0:
        return False  # it stops the process
    if row.op in LAYERS:
        lens = arrays[4] if len(arrays) > 4 else None
        return not (row.attrs.keys() & {"layout", "clip"} or (lens is not None and 0 in lens))
    if row.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        # Axes that keep their extent are copied there, cropped or not.
        after = results[0].shape
        return first.shape[2] != after[2] and first.shape[3] != after[3]
    return row.name not in THEIRS_DIFFERS


def one_node(row, arrays, outputs, known=False) -> tuple[onnx.ModelProto, list[str]]:
    """Float inputs are the model's, of named or known extents; the others its initializers."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(arrays)]
    fed = [n for n, x in zip(names, arrays, strict=True) if n and x.dtype == np.float32]
    attrs = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in row.attrs.items()
    }
    graph = helper.make_graph(
        [helper.make_node(row.op, names, [f"y{i}" for i in range(row.outputs)], **attrs)],
        "one",
        [
            helper.make_tensor_value_info(
                n, TensorProto.FLOAT, x.shape if known else [f"{n}_{a}" for a in range(x.ndim)]
            )
            for n, x in zip(names, arrays, strict=True)
            if n in fed
        ],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None) for y in outputs],
        [
            numpy_helper.from_array(x, n)
            for n, x in zip(names, arrays, strict=True)
            if n and n not in fed
        ],
    )
    opset = helper.make_opsetid("", onnx.defs.onnx_opset_version())
    return helper.make_model(graph, opset_imports=[opset], ir_version=10), fed


@each_row([r for r in ROWS if differentiable(r)])
def test_gradient_as_a_model(row) -> None:
    arrays = row.arrays(np.float32)
    results = evaluate(row, arrays)
    outputs = {
        f"y{i}": y
        for i, y in enumerate(results)
        if y.dtype == np.float32 and (row.seeded is None or i in row.seeded)
    }
    model, fed = one_node(row, arrays, outputs)
    if not outputs or not fed:
        return
    try:
        written = steep.grad(model, fed, list(outputs))
    except (steep.ModelError, steep.ShapeError):
        assert row.op in NEEDS_EXTENTS
        model, fed = one_node(row, arrays, outputs, known=True)
        written = steep.grad(model, fed, list(outputs))
    rng = np.random.default_rng(0)
    feed = {
        n: x for n, x in zip([f"x{i}" for i in range(len(arrays))], arrays, strict=True) if n in fed
    }
    for info in written.graph.input:
        if info.name.startswith("grad_"):
            shape = outputs[info.name.removeprefix("grad_")].shape
            feed[info.name] = rng.uniform(-1, 1, shape).astype(np.float32)
    ours = steep.InferenceSession(written).run(None, feed)
    if agrees(row, arrays, results):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        theirs = onnxruntime.InferenceSession(written.SerializeToString(), options).run(None, feed)
        for info, a, b in zip(written.graph.output, ours, theirs, strict=True):
            assert a.shape == b.shape, info.name
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=info.name)
    # What the engine's own operators find, such as one for all of a recurrent layer's gradient.
    seeds = [
        np.float32(feed.get(f"grad_y{i}", 1)).reshape(y.shape) if f"y{i}" in outputs else None
        for i, y in enumerate(results)
    ]
    places = [int(n.removeprefix("x")) for n in fed]
    trained = gradients(row, arrays, seeds, places).values()
    for name, direct, a in zip(fed, trained, ours[len(outputs) :], strict=True):
        wanted = np.zeros_like(feed[name]) if direct is None else direct
        np.testing.assert_allclose(a, wanted, rtol=1e-4, atol=1e-5, err_msg=name)

"""Operators of ONNX Runtime's domain com.microsoft, which are taken apart into ONNX's."""

import numpy as np
import torch
import torch.nn.functional as F

from .row import SHAPES, floats, ints, table

ROWS, _row = table()
EPSILON = 1e-12


# Of a row that ONNX Runtime's package for the CPU cannot run, or does not run as its docs say.
ALONE = "alone"


def of_contrib(add):
    """The adder of rows of this domain, which ONNX's reference does not know."""
    return lambda op, *inputs, **more: add(f"com.microsoft.{op}", *inputs, reference=False, **more)


row = of_contrib(_row)


def int32(*values):
    return np.array(values, np.int32)


# --- Gelu and its kin ----------------------------------------------------------------------------

for _shape in SHAPES:
    row("Gelu", floats(*_shape), torch=F.gelu)
    row("QuickGelu", floats(*_shape), torch=lambda x: x * torch.sigmoid(1.702 * x))
    if _shape:
        row("FastGelu", floats(*_shape), torch=lambda x: F.gelu(x, approximate="tanh"))
        row("BiasGelu", floats(*_shape), floats(*_shape[-1:]), torch=lambda a, b: F.gelu(a + b))
row("BiasGelu", floats(2, 3, 33), floats(33), torch=lambda a, b: F.gelu(a + b))
row("QuickGelu", floats(4, 5), attrs={"alpha": 0.5}, torch=lambda x: x * torch.sigmoid(0.5 * x))
row("FastGelu", floats(2, 5), floats(5), torch=lambda x, b: F.gelu(x + b, approximate="tanh"))


# --- FusedMatMul ---------------------------------------------------------------------------------


def oriented(x, flip, batch):
    if x.dim() < 2:
        return x
    x = x.movedim(0, -2) if batch else x
    return x.mT if flip else x


def multiply(a, b, op="FusedMatMul", **attrs):
    def product(x, y):
        x = oriented(x, attrs.get("transA", 0), attrs.get("transBatchA", 0))
        y = oriented(y, attrs.get("transB", 0), attrs.get("transBatchB", 0))
        return attrs.get("alpha", 1.0) * (x @ y)

    row(op, floats(*a), floats(*b), attrs=attrs, torch=product)


for _op in ("FusedMatMul", "TransposeMatMul"):
    multiply((2, 3), (3, 4), _op)
    multiply((3, 2), (3, 4), _op, transA=1)
    multiply((2, 3), (4, 3), _op, transB=1, alpha=0.25)
    multiply((5, 3, 2), (5, 4, 3), _op, transA=1, transB=1)
    multiply((2, 2, 3, 4), (2, 2, 5, 4), _op, transB=1, alpha=0.5)
    multiply((2, 1, 3, 4), (3, 4, 5), _op)
    multiply((3,), (3, 2), _op, transA=1)
    multiply((2, 3), (3,), _op, transB=1)
    multiply((0, 3), (3, 4), _op)
    multiply((2, 0), (4, 0), _op, transB=1)
multiply((4, 5, 3), (5, 3, 2), transBatchA=1)
multiply((3, 5, 4), (5, 3, 2), transBatchA=1, transA=1)
multiply((5, 4, 3), (3, 5, 2), transBatchB=1)
multiply((4, 2, 5, 3), (6, 2, 5, 3), transBatchA=1, transBatchB=1, transB=1, alpha=2.0)

# --- normalization -------------------------------------------------------------------------------


def layer_norm(x, scale, bias=None, *, epsilon=EPSILON, axis=-1):
    axes = tuple(range(axis % x.dim(), x.dim()))
    mean = x.mean(axes, keepdim=True)
    inverse = torch.rsqrt(((x - mean) ** 2).mean(axes, keepdim=True) + epsilon)
    y = (x - mean) * inverse * scale
    return y if bias is None else y + bias, mean, inverse


def rms_norm(x, scale, *, epsilon=EPSILON, axis=-1):
    axes = tuple(range(axis % x.dim(), x.dim()))
    inverse = torch.rsqrt((x**2).mean(axes, keepdim=True) + epsilon)
    return x * inverse * scale, inverse


def skip_layer_norm(x, skip, scale, beta=None, bias=None, *, outputs=1, epsilon=EPSILON):
    total = x + skip if bias is None else x + skip + bias
    return (*layer_norm(total, scale, beta, epsilon=epsilon), total)[:outputs]


def skip_rms_norm(x, skip, scale, bias=None, *, epsilon=EPSILON):
    total = x + skip if bias is None else x + skip + bias
    return rms_norm(total, scale, epsilon=epsilon)[0]


for _x in [(2, 3, 4), (1, 1, 5), (3, 2, 16), (2, 1, 33), (1, 4, 2), (0, 3, 4), (2, 0, 4)]:
    _h = floats(_x[-1])
    row("SkipLayerNormalization", floats(*_x), floats(*_x), _h, _h, torch=skip_layer_norm)
    row("SkipSimplifiedLayerNormalization", floats(*_x), floats(*_x), _h, torch=skip_rms_norm)
    row(
        "SimplifiedLayerNormalization",
        floats(*_x),
        _h,
        outputs=2,
        torch=lambda x, s: rms_norm(x, s, epsilon=1e-5),
    )
    row(
        "LayerNormalization",
        floats(*_x),
        _h,
        _h,
        torch=lambda x, s, b: layer_norm(x, s, b, epsilon=1e-5)[0],
    )
for _skip in [(2, 3, 4), (1, 3, 4), (3, 4)]:
    row(
        "SkipLayerNormalization",
        *(floats(2, 3, 4), floats(*_skip), floats(4), None, floats(4)),
        attrs={"epsilon": 1e-3},
        outputs=4,
        torch=lambda *t: skip_layer_norm(*t, outputs=4, epsilon=1e-3),
    )
    row(
        "SkipSimplifiedLayerNormalization",
        *(floats(2, 3, 4), floats(*_skip), floats(4), floats(4)),
        attrs={"epsilon": 1e-3},
        torch=lambda *t: skip_rms_norm(*t, epsilon=1e-3),
    )
row("SkipLayerNormalization", *[floats(3, 8)] * 2, floats(8), torch=skip_layer_norm)
row("SkipSimplifiedLayerNormalization", *[floats(3, 8)] * 2, floats(8), torch=skip_rms_norm)
for _axis, _x in ((1, (3, 4, 2)), (0, (2, 5)), (-2, (2, 2, 3))):
    row(
        "SimplifiedLayerNormalization",
        floats(*_x),
        floats(*_x[_axis:]),
        attrs={"axis": _axis, "epsilon": 1e-3},
        torch=lambda x, s, a=_axis: rms_norm(x, s, epsilon=1e-3, axis=a)[0],
    )
    row(
        "LayerNormalization",
        floats(*_x),
        floats(*_x[_axis:]),
        attrs={"axis": _axis, "epsilon": 1e-3},
        outputs=3,
        torch=lambda x, s, a=_axis: layer_norm(x, s, epsilon=1e-3, axis=a),
    )


# --- EmbedLayerNormalization ---------------------------------------------------------------------


def embed(ids, segments, words, places, kinds, scale, beta, mask=None, positions=None, *, epsilon):
    total = words[ids] + (places[: ids.shape[1]] if positions is None else places[positions])
    if segments is not None:
        total = total + kinds[segments]
    count = torch.zeros(ids.shape[0]) if mask is None else (mask == 1).sum(1)
    return layer_norm(total, scale, beta, epsilon=epsilon)[0], count, total


def embedding(ids, segments=None, mask=None, positions=None, size=4, epsilon=EPSILON):
    given = [None if x is None else np.asarray(x, np.int32) for x in (ids, segments)]
    row(
        "EmbedLayerNormalization",
        *given,
        floats(6, size),
        floats(5, size),
        None if segments is None else floats(2, size),
        floats(size),
        floats(size),
        None if mask is None else np.asarray(mask, np.int32),
        None if positions is None else np.asarray(positions, np.int32),
        attrs={} if epsilon == EPSILON else {"epsilon": epsilon},
        outputs=3,
        torch=lambda i, s, w, p, k, g, b, *more: embed(
            *(i.long(), None if s is None else s.long(), w, p, k, g, b),
            *(None if x is None else x.long() for x in more),
            epsilon=epsilon,
        ),
    )


embedding([[0, 5, 5, 2]])
embedding([[0, 5, 3], [1, 1, 4]], [[0, 0, 1], [1, 1, 1]])
embedding([[0, 5, 3], [1, 1, 4]], mask=[[1, 1, 0], [1, 0, 0]])
embedding([[0, 5], [1, 1]], [[0, 1], [1, 0]], [[1, 2], [0, 0]], size=3)
embedding([[3, 4, 5], [1, 0, 4]], positions=[[2, 2, 0], [0, 1, 4]], epsilon=1e-3)
embedding([[3, 4, 5], [1, 0, 4]], positions=[[4, 3, 2]], size=8)
embedding([[1, 2]], [[1, 1]], [[1, 1]], [[0, 1]], size=16)
embedding([[1]], size=2)
embedding(np.zeros((0, 3)), size=3)
embedding(np.zeros((2, 0)), mask=np.zeros((2, 0)))


# --- RotaryEmbedding -----------------------------------------------------------------------------


def rotary(x, positions, cos, sin, *, interleaved=0, rotary_embedding_dim=0, num_heads=0):
    flat = x.dim() == 3
    if flat:
        heads = num_heads or x.shape[-1] // (2 * cos.shape[-1])
        x = x.unflatten(2, (heads, x.shape[-1] // heads)).transpose(1, 2)
    if positions.dim() == 1:
        positions = (positions + torch.arange(x.shape[2])).expand(x.shape[0], -1)
    width = rotary_embedding_dim or x.shape[-1]
    turned, kept = x[..., :width], x[..., width:]
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = c * a - s * b, s * a + c * b
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    y = torch.cat([turned, kept], -1)
    return y.transpose(1, 2).flatten(2) if flat else y


def rotate(x, positions, cache, **attrs):
    row(
        "RotaryEmbedding",
        *(floats(*x), positions, floats(*cache), floats(*cache)),
        attrs=attrs,
        torch=lambda *t: rotary(*t, **attrs),
    )


for _interleaved in (0, 1):
    rotate((2, 3, 8), ints([[0, 1, 2], [3, 3, 1]]), (4, 2), interleaved=_interleaved)
    rotate((2, 3, 4), ints([1]), (4, 2), interleaved=_interleaved)
    rotate((2, 3, 4, 6), ints([[0, 6, 2, 2], [1, 1, 1, 0]]), (7, 3), interleaved=_interleaved)
    rotate(
        *((1, 3, 12), ints([2]), (5, 1)),
        num_heads=2,
        rotary_embedding_dim=2,
        interleaved=_interleaved,
    )
rotate((1, 2, 1, 2), ints([0]), (1, 1))
rotate((1, 2, 3, 4), ints([0]), (3, 2))
rotate((1, 1, 4), ints([2]), (3, 2), num_heads=1)
rotate((3, 2, 6), ints([[0, 1], [1, 0], [1, 1]]), (2, 3))
rotate((0, 3, 8), np.zeros((0, 3), np.int64), (5, 2))
rotate((2, 0, 8), ints([0]), (5, 2), num_heads=2)


# --- losses --------------------------------------------------------------------------------------


def cross_entropy(scores, labels, weights=None, ignored=None, *, reduction="mean", outputs=1):
    loss = F.cross_entropy(
        *(scores, labels.long(), None if weights is None else weights.detach()),
        reduction=reduction,
        ignore_index=-100 if ignored is None else int(ignored),
    )
    return (loss, torch.log_softmax(scores, 1))[:outputs]


def loss(scores, labels, weights=False, ignored=None, outputs=1, **attrs):
    row(
        "SoftmaxCrossEntropyLossInternal",
        *(floats(*scores), labels, floats(scores[1], low=0.5) if weights else None),
        None if ignored is None else np.array(ignored, np.int64),
        attrs=attrs,
        outputs=outputs,
        note=ALONE,
        # nobody gives weights a gradient
        frozen=(2,) if weights else (),
        torch=lambda *t: cross_entropy(*t, outputs=outputs, **attrs),
    )


for _reduction in ("mean", "sum", "none"):
    loss((3, 5), ints(0, 4, 2), reduction=_reduction)
    loss((4, 3), ints(0, -100, 2, -100), ignored=-100, reduction=_reduction)
    loss((2, 4, 3), ints([[0, 3, 1], [1, 1, 2]]), True, 1, reduction=_reduction)
    loss((2, 3, 2, 2), ints([[[0, 2], [1, 1]], [[2, 2], [0, 1]]]), True, reduction=_reduction)
loss((3, 5), ints(0, 4, 2), outputs=2)
loss((4, 3), ints(0, 2, 2, 1), False, 2, 2)
loss((4, 3), int32(0, 2, 2, 1), False, 2)
loss((1, 2), ints(1))
loss((1, 33), ints(17))
loss((5, 1), ints(0, 0, 0, 0, 0))
loss((0, 3), np.zeros(0, np.int64), reduction="sum")


# --- with activations ----------------------------------------------------------------------------

ACTIVATIONS = {
    "Relu": torch.relu,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Silu": F.silu,
    "LeakyRelu": lambda x: F.leaky_relu(x, 0.25),
    "Clip": lambda x: x.clamp(-0.5, 0.75),
    "HardSigmoid": lambda x: (0.25 * x + 0.5).clamp(0, 1),
}
PARAMETERS = {"LeakyRelu": [0.25], "Clip": [-0.5, 0.75], "HardSigmoid": [0.25, 0.5]}
SMOOTH = {"Tanh", "Sigmoid", "Silu", "", "Elu", "Softplus", "Softsign"}


def convolve(x, w, biased=False, added=None, activation="Relu", **attrs):
    more = {"activation_params": PARAMETERS[activation]} if activation in PARAMETERS else {}

    def convolution(x, w, b=None, z=None):
        pad = attrs.get("pads", [0, 0, 0, 0])[:2]
        y = F.conv2d(x, w, b, attrs.get("strides", 1), pad, 1, attrs.get("group", 1))
        return ACTIVATIONS[activation](y if z is None else y + z)

    row(
        "FusedConv",
        *(floats(*x), floats(*w), floats(w[0]) if biased else None),
        None if added is None else floats(*added),
        attrs={"activation": activation, **more, **attrs},
        smooth=activation in SMOOTH,
        note=ALONE if activation == "Silu" else "",
        torch=convolution,
    )


for _activation in ACTIVATIONS:
    convolve((2, 3, 4, 4), (2, 3, 3, 3), True, activation=_activation)
convolve((1, 1, 3, 3), (1, 1, 2, 2))
convolve((2, 3, 5, 4), (4, 3, 3, 3), True, (2, 4, 5, 4), pads=[1, 1, 1, 1])
convolve((1, 4, 5, 5), (2, 2, 3, 3), activation="Tanh", group=2, strides=[2, 2])
convolve((1, 4, 5, 5), (2, 2, 1, 1), activation="Tanh", group=2)
convolve((3, 1, 2, 7), (2, 1, 1, 3))
convolve((1, 2, 3, 4), (3, 2, 3, 3), kernel_shape=[3, 3])
convolve((1, 2, 6, 6), (1, 2, 3, 3), dilations=[1, 1], auto_pad="VALID")
convolve((2, 1, 4, 5), (1, 1, 2, 2), True, activation="Sigmoid")
convolve((0, 3, 4, 4), (2, 3, 3, 3))

OF_GEMM = {
    "Relu": ({}, torch.relu),
    "Tanh": ({}, torch.tanh),
    "Sigmoid": ({}, torch.sigmoid),
    "LeakyRelu": ({"activation_alpha": 0.25}, lambda x: F.leaky_relu(x, 0.25)),
    "Elu": ({"activation_alpha": 0.5}, lambda x: F.elu(x, 0.5)),
    "HardSigmoid": (
        {"activation_alpha": 0.25, "activation_beta": 0.5},
        lambda x: (0.25 * x + 0.5).clamp(0, 1),
    ),
    "Softplus": ({}, F.softplus),
    "": ({}, lambda x: x),
}


def gemm(a, b, c=None, activation="Relu", **attrs):
    more, function = OF_GEMM[activation]

    def product(x, y, z=None):
        x, y = (x.mT if attrs.get("transA") else x), (y.mT if attrs.get("transB") else y)
        total = attrs.get("alpha", 1.0) * (x @ y)
        return function(total if z is None else total + attrs.get("beta", 1.0) * z)

    row(
        "FusedGemm",
        *(floats(*a), floats(*b), None if c is None else floats(*c)),
        attrs={**({"activation": activation} if activation else {}), **more, **attrs},
        smooth=activation in SMOOTH,
        note="" if activation else ALONE,
        torch=product,
    )


for _activation in OF_GEMM:
    gemm((2, 3), (3, 4), (4,), _activation)
gemm((3, 2), (4, 3), (2, 4), transA=1, transB=1, alpha=0.5, beta=2.0)
gemm((1, 1), (1, 1))
gemm((5, 2), (2, 3), (5, 1), "Tanh")
gemm((2, 7), (7, 2), activation="Tanh")
gemm((1, 3), (3, 16), (1, 16), "Sigmoid")
gemm((4, 4), (4, 4), (4, 4), "Tanh")
gemm((6, 2), (2, 1), (1,))
gemm((3, 5), (5, 3), ())
gemm((0, 3), (3, 4), (4,))

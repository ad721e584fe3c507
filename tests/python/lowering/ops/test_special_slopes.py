"""Slopes at NaN, infinities, ends and ties, to PyTorch's own: results and gradients."""

import itertools
import math

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

import steep
from steep import ORTModule

NAN, INF = math.nan, math.inf
NUMBERS = (NAN, -INF, INF, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0, -3.0, 6.0, 0.5, -0.5, NAN)
ENDS = (NAN, -INF, -1.0, -0.0, 0.0, 1.0, 2.5, INF)

# of NUMBERS, so many of them that PyTorch computes all in whole vectors
OF_ONE = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp(min=0),
    "clamp_max": lambda x: x.clamp(max=1),
    "clamp, an end is NaN": lambda x: [
        *(torch.clamp(x, NAN, 1.0), x.clamp(0, NAN), x.clamp(min=NAN), x.clamp(max=NAN)),
        (x * 1).clamp_(NAN, 1.0),
    ],
    "clamp, ends crossed": lambda x: x.clamp(1, -1),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "tanhshrink": F.tanhshrink,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25])),
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "elu": F.elu,
    "elu, alpha": lambda x: F.elu(x, 2.0),
    "celu": F.celu,
    "celu, alpha": lambda x: F.celu(x, 2.0),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 2.0, 3.0),
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "silu": F.silu,
    # at ∞ some of PyTorch's vectors give NaN, and others do not
    "gelu": lambda x: F.gelu(x.clamp(max=9)),
    "gelu, tanh": lambda x: F.gelu(x.clamp(max=9), approximate="tanh"),
    "mish": F.mish,
    "sinc": torch.sinc,
    "erf": torch.erf,
    "expm1": torch.expm1,
    "powers": lambda x: [x**1.5, x**2.5, x**-1.5, x**0, x**-1, x**3],
    "powers by tensors": lambda x: [
        torch.pow(x, torch.full_like(x, e)) for e in (0.5, -0.5, 0, 1, 1.5, 2)
    ],
    "nan_to_num": torch.nan_to_num,
    "nan_to_num, others": lambda x: torch.nan_to_num(x, 3, 4, -5),
    "asked": lambda x: [
        torch.where(a, x, 7)
        for a in (x.isinf(), x.isposinf(), x.isneginf(), x.isfinite(), x.isnan())
    ],
    "roots": lambda x: [x**0.5, x**-0.5, x.pow(-0.5), torch.pow(x, 0.5)],
    "abs": torch.abs,
    "logit": torch.logit,
    "logit, eps": lambda x: torch.logit(x, 0.1),
    "logit, eps 0": lambda x: torch.logit(x, 0.0),
    "logit, eps -1": lambda x: torch.logit(x, -1.0),
    "entr": torch.special.entr,
    "max": torch.max,
    "min": torch.min,
    "amax": torch.amax,
    "max of numbers": lambda x: x.nan_to_num(1, 3, -3).max() + x.nan_to_num(1, 6, -3).min(),
    "norms": lambda x: [torch.linalg.vector_norm(x, n) for n in (1, 2, 3, 0.5, INF, -INF)],
    "norms of rows": lambda x: [
        torch.linalg.vector_norm(x.nan_to_num(1, 3, 3).view(-1, 7), n, 1, True) for n in (INF, -INF)
    ],
    "hinge": lambda x: F.hinge_embedding_loss(x, -torch.ones_like(x), reduction="none"),
    "margin": lambda x: F.margin_ranking_loss(x, -x, torch.ones_like(x), reduction="sum"),
}

# of pairs of ENDS
OF_TWO = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp_min": lambda x, y: x.clamp(min=y),
    "clamp_max": lambda x, y: x.clamp(max=y),
    "clamp, grown": lambda x, y: torch.clamp(x.view(8, 8), y[:8], y[0]),
    "l1": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "smooth_l1, beta": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, reduction="sum"),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "huber, delta": lambda x, y: F.huber_loss(x, y, delta=2.0, reduction="sum"),
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "xlogy": torch.xlogy,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "lerp": lambda x, y: torch.lerp(x, y, y),
    "xlog1py": lambda x, y: torch.special.xlog1py(x.clamp(-3, 3), y),
}


def triples(dtype):
    return [
        torch.tensor(v, dtype=dtype) for v in zip(*itertools.product(ENDS, repeat=3), strict=True)
    ]


def pairs():
    return [torch.tensor(v) for v in zip(*itertools.product(ENDS, repeat=2), strict=True)]


def points(dtype, corners):
    """Of an image of 4 · 4: on elements, on the borders, half-way between two and beyond."""
    along = [-1.0, 1.0, -1.25, 1.25, -1.5, 1.5, -2, 3, 0.13, *(() if corners else (-0.75, 0.75))]
    at = torch.tensor(list(itertools.product(along, repeat=2)), dtype=dtype)
    image = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    return [at.view(1, -1, 1, 2), image]


def sampled(mode, padding, corners):
    return lambda grid, x: F.grid_sample(x, grid, mode, padding, corners)


def product(function, alpha, beta):
    return lambda *operands: function(*operands, alpha=alpha, beta=beta)


PRODUCTS = {
    torch.addmm: ((3, 4), (3, 5), (5, 4)),
    torch.addmv: ((3,), (3, 5), (5,)),
    torch.addr: ((3, 4), (3,), (4,)),
    torch.baddbmm: ((2, 3, 4), (2, 3, 5), (2, 5, 4)),
    torch.addbmm: ((3, 4), (2, 3, 5), (2, 5, 4)),
}


def operands(shapes, at, value):
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    made[at].view(-1)[0] = value
    return made


def masked(function):
    """The gradient of the function is 0 where its last operand is not above 0."""
    return lambda *operands: [
        torch.where(operands[-1] > 0, y, torch.zeros_like(y))
        if y.shape == operands[-1].shape
        else y
        for y in tree_leaves(function(*operands))
    ]


CASES = {
    **{f"{name}, masked": (masked(f), [torch.tensor(NUMBERS * 16)]) for name, f in OF_ONE.items()},
    **{f"{name} of two, masked": (masked(f), pairs()) for name, f in OF_TWO.items()},
    **{name: (f, [torch.tensor(NUMBERS * 16)]) for name, f in OF_ONE.items()},
    **{f"{name} of two": (f, pairs()) for name, f in OF_TWO.items()},
    **{f"clamp of {t}": (torch.clamp, triples(t)) for t in (torch.float32, torch.float64)},
    **{
        f"grid_sample, {mode}, {padding}, {corners}, {t}": (
            sampled(mode, padding, corners),
            points(t, corners),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (True, False)
        for t in (torch.float32, torch.float64)
    },
    **{
        f"{f.__name__}, alpha {alpha}, beta {beta}, {value} in {at}": (
            product(f, alpha, beta),
            operands(shapes, at, value),
        )
        for f, shapes in PRODUCTS.items()
        for alpha, beta in ((0, 1), (1, 0), (0, 0), (2, 0), (0, 3))
        for at in range(3)
        for value in (NAN, INF)
    },
    "linspace": (lambda x: torch.linspace(x[0], x[1], 5) * x, [torch.arange(5.0)]),
    "logspace": (lambda x: torch.logspace(x[0], x[1], 5) * x, [torch.arange(5.0)]),
    "norm of order 0": (lambda x: x * x.norm(0), [torch.arange(5.0)]),
}


class Of(torch.nn.Module):
    """Functions, each of arguments of its own: one capture for all."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *arguments):
        return [f(*given) for f, given in zip(self.functions, arguments, strict=True)]


def outcome(net, arguments):
    """Return, for each function, its results and the gradients of its arguments."""
    given = [[x.clone().requires_grad_() for x in some] for some in arguments]
    made = [tree_leaves(results) for results in net(*given)]
    results = [y for some in made for y in some]
    seeds = [torch.arange(y.numel()).cos().mul(2).add(3).view(y.shape).to(y.dtype) for y in results]
    torch.autograd.backward(results, seeds)
    return [[*some, *(x.grad for x in g)] for some, g in zip(made, given, strict=True)]


def test_slopes_are_pytorchs():
    functions, arguments = zip(*CASES.values(), strict=True)
    expected = outcome(Of(functions), arguments)
    found = outcome(ORTModule(Of(functions), fallback=None), arguments)
    for name, rights, values in zip(CASES, expected, found, strict=True):
        for right, value in zip(rights, values, strict=True):
            torch.testing.assert_close(
                value,
                right,
                rtol=1e-5,
                atol=2e-5,
                equal_nan=True,
                msg=lambda m, name=name: f"{name}: {m}",
            )


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [True, False])
def test_slopes_of_grid_sample_in_a_model_of_gradients(padding, corners):
    grid, x = (t.requires_grad_() for t in points(torch.float32, corners))
    y = F.grid_sample(x, grid, "bilinear", padding, corners)
    y.sum().backward()
    info = helper.make_tensor_value_info
    attributes = {"mode": "linear", "padding_mode": padding, "align_corners": int(corners)}
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("GridSample", ["x", "grid"], ["y"], **attributes),
                helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0),
            ],
            "g",
            [
                info("x", TensorProto.FLOAT, x.shape),
                info("grid", TensorProto.FLOAT, grid.shape),
            ],
            [info("sum", TensorProto.FLOAT, [])],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
    )
    gradients = steep.grad(model, wrt=["x", "grid"])
    assert isinstance(gradients, onnx.ModelProto)
    found = steep.InferenceSession(gradients).run(
        ["grad_x", "grad_grid"], {"x": x.detach().numpy(), "grid": grid.detach().numpy()}
    )
    for value, right in zip(found, (x.grad, grid.grad), strict=True):
        np.testing.assert_allclose(value, right.numpy(), rtol=1e-4, atol=1e-5)


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class Spelt(torch.nn.Module):
    def forward(self, q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


@pytest.mark.parametrize("module", [Attention, Spelt])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saturated_attention_has_no_gradient(module, dtype):
    """Where one key has all of the weight; PyTorch's own kernel of tiles leaves rounding errors."""
    for length, width in ((8, 4), (33, 16), (130, 70)):
        generator = torch.Generator().manual_seed(0)
        q, k, v = torch.randn(3, 1, 2, length, width, generator=generator).to(dtype)
        given = [[q * 1e4, k * 1e4, v]]
        with sdpa_kernel(SDPBackend.MATH):
            (expected,) = outcome(lambda x: [Attention()(*x)], given)
        (found,) = outcome(lambda x: [ORTModule(module(), fallback=None)(*x)], given)
        assert not expected[1].any() and not expected[2].any()
        assert not found[1].any() and not found[2].any()
        torch.testing.assert_close(found, expected)


class Masked(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask)


def attended(net, operands, mask):
    given = [x.clone().requires_grad_() for x in operands]
    y = net(*given, mask)
    y.backward(torch.arange(y.numel()).cos().add(1.5).view(y.shape).to(y.dtype))
    return [y, *(x.grad for x in given)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_mask_of_great_numbers_that_hides_all_keys(dtype):
    """A row keeps what its scores say beside -10,000, of 16 bits too.

    PyTorch's kernel for four axes loses the row's sum beside the least number, for gradients.
    """
    ours = ORTModule(Masked(), fallback=None)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(2, 2, 6, 8, generator=generator).to(dtype) for _ in range(3)]
    for value in (torch.finfo(dtype).min, torch.finfo(dtype).min / 2, -1e4, -INF):
        mask = torch.zeros(2, 1, 6, 6)
        mask[:, :, :, 4:] = value
        mask[1, :, 2] = value
        mask = mask.to(dtype)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            expected = attended(Masked(), operands, mask)
        for right, y in zip(expected, attended(ours, operands, mask), strict=True):
            size = right.abs().max().item()
            torch.testing.assert_close(y, right, rtol=tolerance, atol=tolerance * size)


WITHOUT_DERIVATIVE = {
    "floor_divide": [
        lambda x: x // 2 + x,
        lambda x: 2 // x + x,
        lambda x: torch.floor_divide(x, x) + x,
        lambda x: x.floor_divide(2) + x,
    ],
    "heaviside": [lambda x: torch.heaviside(x, x) + x],
    "unique": [lambda x: x.unique().sum() + x, lambda x: torch.unique(x).sum() + x],
}


@pytest.mark.parametrize("name", WITHOUT_DERIVATIVE)
def test_what_has_no_derivative_in_pytorch_is_refused(name):
    for function in WITHOUT_DERIVATIVE[name]:
        net = Of([function])
        x = torch.tensor([1.0, 5.0, 3.0], requires_grad=True)
        with pytest.raises(steep.ModelError, match=f"no derivative of {name}"):
            ORTModule(net, fallback=None)([x])
        with pytest.raises((RuntimeError, NotImplementedError), match=r"derivative for"):
            ORTModule(net, fallback="parts")([x])[0].sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(ORTModule(net, fallback=None)([x]), net([x]))


def test_a_quotient_that_hands_no_gradient_on_is_taken():
    net = Of([lambda x: x * (x // 2).long() + x.detach() // 2])
    x = torch.tensor([1.0, 5.0, 3.0])
    expected, found = (outcome(m, [[x]]) for m in (net, ORTModule(net, fallback=None)))
    torch.testing.assert_close(found, expected)


class OfIt(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def masked_by_hand(x):
    """Attention whose second query has nothing to attend to, or is saturated, with dropout."""
    seen = torch.ones(4, 4, dtype=torch.bool)
    seen[1] = False
    scores = (x @ x.transpose(-1, -2)).masked_fill(~seen, -INF)
    return F.dropout(scores.softmax(-1), 0.5) @ x


@pytest.mark.parametrize("shape", [(2, 4, 8), (2, 3, 4, 8), (4, 8)], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_dropout_of_no_number_is_none(shape, size):
    """PyTorch multiplies by 0: NaN and infinity stay, whatever is drawn."""
    torch.manual_seed(0)
    given = torch.randn(shape) * size
    found = []
    for module in (OfIt(masked_by_hand), ORTModule(OfIt(masked_by_hand), fallback=None)):
        x = given.clone().requires_grad_()
        y = module(x)
        y.sum().backward()
        found.append((y.isnan(), x.grad.isnan()))
    for ours, right in zip(*found, strict=True):
        assert torch.equal(ours, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [0.5, 1.0])
def test_dropout_of_infinity(dtype, p):
    x = torch.tensor([NAN, INF, -INF, 1.0] * 64, dtype=dtype).requires_grad_()
    y = ORTModule(OfIt(lambda x: F.dropout(x, p)), fallback=None)(x)
    kinds = y.detach().view(-1, 4)
    assert kinds[:, 0].isnan().all()
    assert not kinds[:, 1:3].isfinite().any() and kinds[:, 3].isfinite().all()
    y.backward(torch.full_like(y, NAN))
    assert x.grad.isnan().all()

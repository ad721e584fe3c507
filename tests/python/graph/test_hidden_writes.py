"""Writes that PyTorch does not see, by ``.data`` or NumPy, between forward and backward.

Eager PyTorch's backward reads the written memory of the operands that it saved. Ours reads it for
operands of products, and forward's values for all others: each gradient is one that eager PyTorch
gives, with the write or without it, and the same choice holds for all gradients of a call.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import steep
from steep import ORTModule
from steep.graph.compiled_graph import CompiledGraph

ROWS, WIDTH = 4, 6
IDS = torch.tensor([1, 2, 3, 0])


def flags(t):
    return (t > 0).long()


# Of x, [ROWS, WIDTH], and w, [WIDTH, WIDTH].
FUNCTIONS = {
    "maximum of x alone": lambda x, w: torch.maximum(x, x * 1.0),
    "minimum of x alone": lambda x, w: torch.minimum(x, x * 1.0),
    "maximum": lambda x, w: torch.maximum(x, w[:ROWS]),
    "fmod": lambda x, w: torch.fmod(x, w[:ROWS]),
    "product": lambda x, w: x * w[:ROWS],
    "quotient": lambda x, w: x / w[:ROWS] + w[:ROWS] / x,
    "cube": lambda x, w: x * x * x,
    "powers": lambda x, w: x**3 + x.abs() ** w[0],
    "atan2": lambda x, w: torch.atan2(x, w[:ROWS]),
    "hypot": lambda x, w: torch.hypot(x, w[:ROWS]),
    "lerp": lambda x, w: torch.lerp(x, w[:ROWS], x * x),
    "addcdiv": lambda x, w: torch.addcdiv(x, x, w[:ROWS]),
    "where": lambda x, w: torch.where(x > 0, x * w[0], x * 2),
    "where of w": lambda x, w: torch.where(w[:ROWS] > 0, x * w[0], x * 2),
    "clamp": lambda x, w: x.clamp(-0.5, 0.5) + x.clamp(max=w[0]),
    "sign": lambda x, w: x * x.sign() + x.abs(),
    "relu": lambda x, w: F.relu(x) + F.relu(x * w[0]),
    "gelu": lambda x, w: F.gelu(x) + F.gelu(x * 2),
    "silu": lambda x, w: F.silu(x) + x * x.sigmoid(),
    "mish": lambda x, w: F.mish(x) + F.softplus(x),
    "elu": lambda x, w: F.elu(x) + F.celu(x * x) * x,
    "hardtanh": lambda x, w: F.hardtanh(x) + F.hardswish(x),
    "prelu": lambda x, w: F.prelu(x, w[0]),
    "glu": lambda x, w: F.glu(x),
    "sin, exp": lambda x, w: x.sin() * x.exp(),
    "erf": lambda x, w: x.erf() + F.logsigmoid(x),
    "amax": lambda x, w: x.amax(-1) + x.max(-1)[0] + x.max(),
    "prod": lambda x, w: x.prod(-1),
    "cumprod": lambda x, w: x.cumprod(-1),
    "cummax": lambda x, w: x.cummax(-1)[0],
    "logsumexp": lambda x, w: x.logsumexp(-1),
    "norms": lambda x, w: x.norm(dim=-1) + x.norm(1, -1) + x.norm(3, -1) + x.norm(torch.inf, -1),
    "std": lambda x, w: x.std(-1) + x.var(-1),
    "softmax": lambda x, w: x.softmax(-1) * x,
    "layer norm": lambda x, w: F.layer_norm(x, (WIDTH,), w[0], w[1]),
    "layer norm, gelu": lambda x, w: F.gelu(F.layer_norm(x, (WIDTH,), w[0], w[1])),
    "rms norm": lambda x, w: F.rms_norm(x, (WIDTH,), w[0]),
    "group norm": lambda x, w: F.group_norm(x, 2, w[0], w[1]),
    "batch norm": lambda x, w: F.batch_norm(x, None, None, w[0], w[1], training=True),
    "max pool": lambda x, w: F.max_pool1d(x[None], 2),
    "average pool": lambda x, w: F.avg_pool1d(x[None] * x[None], 2),
    "convolution": lambda x, w: F.conv1d(x[None], w.view(3, 4, 3)),
    "convolution, relu": lambda x, w: F.relu(F.conv1d(x[None], w.view(3, 4, 3))),
    "linear": lambda x, w: F.linear(x, w, w[0]),
    "matmul, gelu": lambda x, w: F.gelu(x @ w),
    "two linear": lambda x, w: F.linear(F.relu(F.linear(x, w)), w),
    "gram": lambda x, w: (x @ x.t()) @ x,
    "einsum": lambda x, w: torch.einsum("ij,jk->ki", x, w),
    "product beside": lambda x, w: x @ w + F.gelu(x * 2),
    "gate": lambda x, w: (x @ w) * x.sigmoid(),
    "weights of a norm": lambda x, w: x @ (w / w.norm(dim=1, keepdim=True)).t(),
    "inverse": lambda x, w: torch.linalg.inv(x[:, :ROWS]) + torch.linalg.solve(w, x.t())[:ROWS],
    "cosine": lambda x, w: F.cosine_similarity(x, w[:ROWS]),
    "gather": lambda x, w: (x * x).gather(1, flags(x)),
    "scatter": lambda x, w: torch.zeros(ROWS, WIDTH).scatter(1, flags(x), x * w[0]),
    "scatter, largest": lambda x, w: torch.zeros(ROWS, WIDTH).scatter_reduce(
        1, flags(w[:ROWS]), x, "amax"
    ),
    "sort": lambda x, w: x.sort(-1)[0] * w[0],
    "masked": lambda x, w: (x * w[0]).masked_fill(x > 0, 0.0),
    "embedding": lambda x, w: F.embedding(IDS, w) @ w * x,
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None] * 1.5),
    "attention to x": lambda x, w: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "attention by hand": lambda x, w: (x @ w.t() / 2.4).softmax(-1) @ w,
    "heads": lambda x, w: F.multi_head_attention_forward(
        *[x[:, None]] * 3,
        *(WIDTH, 2, None, None, None, None, False, 0.0, w, None),
        use_separate_proj_weight=True,
        **dict.fromkeys(["q_proj_weight", "k_proj_weight", "v_proj_weight"], w),
    )[0],
    "dropout of none": lambda x, w: F.dropout(x, 0.0) * x,
    "losses": lambda x, w: F.mse_loss(x, w[:ROWS]) + F.smooth_l1_loss(x, w[:ROWS]),
    "cross entropy": lambda x, w: F.cross_entropy(x, IDS) + F.cross_entropy(x @ w, IDS),
    "entropies": lambda x, w: F.binary_cross_entropy_with_logits(x, w[:ROWS].sigmoid()),
    "margins": lambda x, w: F.triplet_margin_loss(x, w[:ROWS], x * 2),
    "det": lambda x, w: torch.linalg.det(x[:, :ROWS]),
    "resized": lambda x, w: F.interpolate((x * x)[None], scale_factor=2.0, mode="linear"),
    "recurrent": lambda x, w: torch.rnn_tanh_cell(x, torch.ones(ROWS, WIDTH), w, w, w[0], w[1]),
    "sinc": lambda x, w: torch.sinc(x) + torch.logaddexp(x, w[:ROWS]),
}
WRITES = {
    "zeros": lambda t: t.data.zero_(),
    "others": lambda t: t.data.copy_(torch.linspace(-2, 2, t.numel()).view(t.shape)),
    "a part": lambda t: (t.data[..., :1] if t.dim() else t.data).mul_(-3),
    "NumPy": lambda t: t.detach().numpy().fill(0.5),
}


class All(nn.Module):
    """The functions, each of an argument and a parameter or a buffer of its own: one capture."""

    def __init__(self, functions, learned):
        super().__init__()
        self.functions = functions
        for i in range(len(functions)):
            w = torch.randn(WIDTH, WIDTH)
            if learned:
                self.register_parameter(f"w{i}", nn.Parameter(w))
            else:
                self.register_buffer(f"w{i}", w)

    def weights(self):
        return [getattr(self, f"w{i}") for i in range(len(self.functions))]

    def forward(self, *xs):
        return [f(x, w) for f, x, w in zip(self.functions, xs, self.weights(), strict=True)]


def slopes(net, module, xs, write=None, of=""):
    """Return the gradients of each function, with a write between forward and backward."""
    before = [w.detach().clone() for w in module.weights()]
    given = [x.clone().requires_grad_() for x in xs]
    results = net(*given)
    if write is not None:
        for t in {"arguments": given, "weights": module.weights(), "results": results}[of]:
            write(t)
    ones = [torch.arange(1.0, y.numel() + 1).view(y.shape) for y in results]
    wanted = [*given, *(w for w in module.weights() if w.requires_grad)]
    made = torch.autograd.grad(results, wanted, ones, materialize_grads=True)
    for w, values in zip(module.weights(), before, strict=True):
        w.data.copy_(values)
    count = len(given)
    return [made[i::count] for i in range(count)]


def agree(found, expected):
    return all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(b.nan_to_num().abs().max()) + 1e-6,
                       equal_nan=True)
        for a, b in zip(found, expected, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("learned", [True, False], ids=["parameters", "buffers"])
def test_no_gradient_is_a_mixture(learned):
    torch.manual_seed(0)
    names = [*FUNCTIONS][:: 1 if learned else 4]
    module = All([FUNCTIONS[name] for name in names], learned)
    net = ORTModule(copy.deepcopy(module), fallback=None)
    xs = [torch.randn(ROWS, WIDTH) for _ in names]
    unwritten = slopes(module, module, xs)
    for _ in range(2):  # at first, and later
        for of in ("arguments", "weights", "results"):
            for way, write in WRITES.items():
                written = slopes(module, module, xs, write, of)
                found = slopes(net, net.module, xs, write, of)
                for name, a, b, c in zip(names, found, written, unwritten, strict=True):
                    where = f"{name}, {way} in {of}: {a}\nwith {b}\nwithout {c}"
                    assert agree(a, b) or agree(a, c), where


def test_operands_of_products_are_read_where_they_lie():
    """As PyTorch reads them: no step copies the weights of a network."""
    torch.manual_seed(0)
    module = All([lambda x, w: F.relu(F.linear(x, w))], True)
    net = ORTModule(copy.deepcopy(module), fallback=None)
    xs = [torch.randn(ROWS, WIDTH)]
    for of in ("arguments", "weights"):
        for write in (None, *WRITES.values()):
            expected = slopes(module, module, xs, write, of)
            assert agree(slopes(net, net.module, xs, write, of)[0], expected[0])


def test_weights_of_layers_are_not_copied(monkeypatch):
    made, make = [], CompiledGraph.__init__

    def noted(self, lowered):
        make(self, lowered)
        made.append(lowered)

    monkeypatch.setattr(CompiledGraph, "__init__", noted)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    ORTModule(layer, fallback=None)(torch.randn(2, 3, 8, requires_grad=True)).sum().backward()
    (lowered,) = made
    weights = [t for t in lowered.tensors if isinstance(t.fake, nn.Parameter) and t.fake.ndim == 2]
    assert len(weights) == 4 and all(t.in_place for t in weights)


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def second_backward(net, before, between):
    """Return the gradients of two backwards of a call, with writes to the parameters."""
    x = torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH)
    for _ in range(2):  # whose backward is the same
        net(x).sum().backward()
    net.zero_grad()
    y = net(x).sum()
    for write, kept in ((before, True), (between, False)):
        for p in net.parameters():
            p.data.mul_(write)
        y.backward(retain_graph=kept)
    return [p.grad for p in net.parameters()]


def test_another_backward_reads_what_the_first_one_kept():
    plain = layers()
    expected = second_backward(copy.deepcopy(plain), 1, -0.5)
    torch.testing.assert_close(second_backward(ORTModule(plain), 1, -0.5), expected)


def test_forward_does_not_run_again_on_what_was_written():
    with pytest.raises(steep.DataError, match="changed since"):
        second_backward(ORTModule(layers()), -0.5, 1)

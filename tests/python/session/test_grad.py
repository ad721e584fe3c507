"""steep.grad: gradients as ONNX models that any runtime can run, checked against PyTorch."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from steep_program import steep as program
from torch import nn

import steep

F = TensorProto.FLOAT
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporter's


class Mlp(nn.Module):
    """Returns its loss, and the prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, target):
        y = self.second(torch.tanh(self.first(x)))
        return ((y - target) ** 2).mean(), y


class Transformer(nn.Module):
    """One block over word embeddings, causal; returns the cross entropy of the next words."""

    def __init__(self, words: int = 17, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(words, width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.logits = nn.Linear(width, words)

    def forward(self, tokens, target):
        h = self.embedding(tokens)
        batch, length, width = h.shape
        q, k, v = (
            t.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for t in self.qkv(self.norm1(h)).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.ones_like(scores).triu(1)
        a = (scores - 1e4 * mask).softmax(-1) @ v
        h = h + self.mix(a.transpose(1, 2).reshape(batch, length, width))
        h = h + self.down(nn.functional.gelu(self.up(self.norm2(h))))
        logits = self.logits(h)
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


class Images(nn.Module):
    """Convolutions with strides, groups and dilations, and both poolings."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.second = nn.Conv2d(4, 6, (3, 2), padding=(1, 1), dilation=(1, 2), groups=2)
        self.last = nn.Linear(6, 3)

    def forward(self, x, target):
        h = nn.functional.max_pool2d(torch.tanh(self.first(x)), 2, stride=1)
        h = nn.functional.avg_pool2d(torch.sigmoid(self.second(h)), 2, padding=1)
        return ((self.last(h.mean((2, 3))) - target) ** 2).sum()


def with_weights_of_its_own(module: nn.Module) -> nn.Module:
    """No two parameters alike: the exporter would store them once."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def exported(
    module: nn.Module, args: tuple, names: list[str], outputs: list[str]
) -> onnx.ModelProto:
    batch = torch.export.Dim("batch", min=2, max=64)
    file = io.BytesIO()
    torch.onnx.export(
        module,
        args,
        file,
        input_names=names,
        output_names=outputs,
        dynamic_shapes={n: {0: batch} for n in names},
        dynamo=True,
        verbose=False,
    )
    return onnx.load_model_from_string(file.getvalue())


def run_both(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Results of Steep, within 1e-5 of those of ONNX Runtime."""
    assert {n.domain for n in model.graph.node} <= {"", "ai.onnx"}
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    theirs = session.run(None, feed)
    names = [o.name for o in session.get_outputs()]
    ours = steep.InferenceSession(model).run(None, feed)
    for name, a, b in zip(names, ours, theirs, strict=True):
        assert a.shape == b.shape, name
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=name)
    return dict(zip(names, ours, strict=True))


def close(a: np.ndarray, b: torch.Tensor, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-4, atol=tolerance)


@pytest.fixture(scope="module")
def mlp() -> tuple[Mlp, onnx.ModelProto]:
    torch.manual_seed(0)
    module = with_weights_of_its_own(Mlp())
    args = (torch.randn(4, 6), torch.randn(4, 3))
    return module, exported(module, args, ["x", "target"], ["loss", "y"])


@pytest.fixture(scope="module")
def transformer() -> tuple[Transformer, onnx.ModelProto]:
    torch.manual_seed(0)
    module = with_weights_of_its_own(Transformer())
    args = (torch.randint(17, (4, 5)), torch.randint(17, (4, 5)))
    return module, exported(module, args, ["tokens", "target"], ["loss"])


@pytest.mark.parametrize("batch", [2, 7])
def test_mlp(mlp: tuple[Mlp, onnx.ModelProto], batch: int) -> None:
    module, model = mlp
    x, target = torch.randn(batch, 6, requires_grad=True), torch.randn(batch, 3)
    wrt = ["first.weight", "x", "second.bias"]
    gradients = steep.grad(model, wrt, outputs=["loss"])
    feed = {"x": x.detach().numpy(), "target": target.numpy()}
    results = run_both(gradients, feed)
    assert list(results) == ["loss", *(f"grad_{w}" for w in wrt)]
    loss, _ = module(x, target)
    wanted = torch.autograd.grad(loss, [module.first.weight, x, module.second.bias])
    close(results["loss"], loss)
    for name, value in zip(wrt, wanted, strict=True):
        close(results[f"grad_{name}"], value)


def test_outputs_that_are_no_scalars_take_the_gradient_that_reaches_them(mlp) -> None:
    module, model = mlp
    x, target = torch.randn(3, 6, requires_grad=True), torch.randn(3, 3)
    dy = torch.randn(3, 3)
    gradients = steep.grad(model, ["x"])  # of the loss and y
    assert [i.name for i in gradients.graph.input] == ["x", "target", "grad_y"]
    results = run_both(
        gradients,
        {"x": x.detach().numpy(), "target": target.numpy(), "grad_y": dy.numpy()},
    )
    loss, y = module(x, target)
    (wanted,) = torch.autograd.grad([loss, (y * dy).sum()], [x])
    close(results["grad_x"], wanted)


def test_transformer(transformer) -> None:
    module, model = transformer
    names = [n for n, _ in module.named_parameters()]
    known = {t.name for t in model.graph.initializer}
    names = [n for n in names if n in known]
    assert len(names) >= 8
    gradients = steep.grad(model, names)
    for batch in (2, 6):
        tokens, target = torch.randint(17, (batch, 5)), torch.randint(17, (batch, 5))
        results = run_both(gradients, {"tokens": tokens.numpy(), "target": target.numpy()})
        parameters = dict(module.named_parameters())
        wanted = torch.autograd.grad(module(tokens, target), [parameters[n] for n in names])
        for name, value in zip(names, wanted, strict=True):
            close(results[f"grad_{name}"], value)


def hessian_product(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    first = steep.grad(model, [name], outputs=["loss"])
    return steep.grad(first, [name], outputs=[f"grad_{name}"])


@pytest.mark.parametrize("name", ["first.weight", "second.weight"])
def test_hessian_vector_product_of_an_mlp(mlp, name: str) -> None:
    module, model = mlp
    x, target = torch.randn(5, 6), torch.randn(5, 3)
    weight = dict(module.named_parameters())[name]
    v = torch.randn_like(weight)
    results = run_both(
        hessian_product(model, name),
        {"x": x.numpy(), "target": target.numpy(), f"grad_grad_{name}": v.numpy()},
    )
    (slope,) = torch.autograd.grad(module(x, target)[0], [weight], create_graph=True)
    (wanted,) = torch.autograd.grad((slope * v).sum(), [weight])
    close(results[f"grad_{name}_2"], wanted)
    assert wanted.abs().max() > 1e-2


@pytest.mark.parametrize("name", ["qkv.bias", "norm1.weight", "up.bias", "embedding.weight"])
def test_hessian_vector_product_of_a_transformer(transformer, name: str) -> None:
    module, model = transformer
    tokens, target = torch.randint(17, (3, 5)), torch.randint(17, (3, 5))
    weight = dict(module.named_parameters())[name]
    v = torch.randn_like(weight)
    results = run_both(
        hessian_product(model, name),
        {"tokens": tokens.numpy(), "target": target.numpy(), f"grad_grad_{name}": v.numpy()},
    )
    (slope,) = torch.autograd.grad(module(tokens, target), [weight], create_graph=True)
    (wanted,) = torch.autograd.grad((slope * v).sum(), [weight])
    close(results[f"grad_{name}_2"], wanted)
    assert wanted.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["first.weight", "second.weight"])
def test_images(name: str) -> None:
    torch.manual_seed(0)
    module = with_weights_of_its_own(Images())
    x, target = torch.randn(2, 3, 10, 9), torch.randn(2, 3)
    model = exported(module, (x, target), ["x", "target"], ["loss"])
    weight = dict(module.named_parameters())[name]
    v = torch.randn_like(weight)
    results = run_both(
        hessian_product(model, name),
        {"x": x.numpy(), "target": target.numpy(), f"grad_grad_{name}": v.numpy()},
    )
    (slope,) = torch.autograd.grad(module(x, target), [weight], create_graph=True)
    (wanted,) = torch.autograd.grad((slope * v).sum(), [weight])
    close(results[f"grad_{name}"], slope)
    close(results[f"grad_{name}_2"], wanted)


def small(
    nodes: list, inputs: dict, weights: dict | None = None, opset: int = 17
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, F, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(v, n) for n, v in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 4), (1, 4)), ((1, 4), (3, 4))])
@pytest.mark.parametrize("ranks", [("n", "m"), ("n", None)])
def test_broadcasting_is_undone_when_extents_are_not_known(shapes, ranks) -> None:
    model = small(
        [helper.make_node("Mul", ["a", "b"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])],
        {"a": [ranks[0], 4], "b": [ranks[1], 4]},
    )
    gradients = steep.grad(model, ["a", "b"])
    a, b = (torch.randn(*s, requires_grad=True) for s in shapes)
    y = torch.tanh(a * b)
    dy = torch.randn_like(y)
    results = run_both(
        gradients, {"a": a.detach().numpy(), "b": b.detach().numpy(), "grad_y": dy.numpy()}
    )
    for name, value in zip("ab", torch.autograd.grad(y, [a, b], dy), strict=True):
        close(results[f"grad_{name}"], value)


def test_broadcasting_of_nothing_gives_zeros() -> None:
    model = small([helper.make_node("Add", ["a", "b"], ["y"])], {"a": ["n", 4], "b": ["m", 4]})
    feed = {n: np.ones(s, np.float32) for n, s in (("a", (0, 4)), ("b", (1, 4)))}
    results = run_both(steep.grad(model, ["a", "b"]), {**feed, "grad_y": feed["a"]})
    assert results["grad_a"].shape == (0, 4)
    np.testing.assert_array_equal(results["grad_b"], np.zeros((1, 4)))


def test_what_does_not_matter_has_a_gradient_of_zeros() -> None:
    model = small([helper.make_node("Neg", ["a"], ["y"])], {"a": [2], "b": ["n", 3]})
    feed = {n: np.ones(s, np.float32) for n, s in (("a", 2), ("b", (5, 3)), ("grad_y", 2))}
    results = run_both(steep.grad(model, ["b"]), feed)
    np.testing.assert_array_equal(results["grad_b"], np.zeros((5, 3)))


# PyTorch's gates in ONNX's order.
GATES = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}


@pytest.mark.parametrize("kind", GATES)
def test_recurrent_layers_twice(kind: str) -> None:
    torch.manual_seed(0)
    layer = getattr(nn, kind)(3, 4)

    def reordered(weight: torch.Tensor) -> torch.Tensor:
        parts = weight.chunk(len(GATES[kind]))
        return torch.cat([parts[i] for i in GATES[kind]])

    w, r, *biases = (reordered(p).detach() for p in layer.parameters())
    model = small(
        [
            helper.make_node(
                kind,
                ["x", "w", "r", "b"],
                ["y"],
                hidden_size=4,
                **({"linear_before_reset": 1} if kind == "GRU" else {}),
            )
        ],
        {"x": ["t", "n", 3]},
        {n: t[None].numpy() for n, t in zip("wrb", (w, r, torch.cat(biases)), strict=True)},
    )
    first = steep.grad(model, ["x", "w"])
    second = steep.grad(first, ["x"], outputs=["grad_w"])
    for steps, batch in ((5, 2), (1, 3)):
        x = torch.randn(steps, batch, 3, requires_grad=True)
        dy, v = torch.randn(steps, 1, batch, 4), torch.randn(w.shape)
        feed = {"x": x.detach().numpy(), "grad_y": dy.numpy()}
        slopes = run_both(first, feed)
        dx, dw = torch.autograd.grad(
            layer(x)[0], [x, layer.weight_ih_l0], dy[:, 0], create_graph=True
        )
        close(slopes["grad_x"], dx)
        close(slopes["grad_w"][0], reordered(dw))
        (wanted,) = torch.autograd.grad((reordered(dw) * v).sum(), [x])
        close(run_both(second, {**feed, "grad_grad_w": v[None].numpy()})["grad_x"], wanted)


class Recurrent(nn.Module):
    """Two layers in both directions, then one of two ways on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(5, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.one, self.other = nn.Linear(6, 4), nn.Linear(6, 4)

    def ways(self, h):
        return torch.tanh(self.one(h)), torch.sin(self.other(h))

    def forward(self, x):
        h, _ = self.layers(x)
        y = torch.cond(x.sum() > 0, lambda t: self.ways(t)[0], lambda t: self.ways(t)[1], (h,))
        return (y**2).sum()

    def without_cond(self, x):
        """PyTorch's second derivatives lose what goes through its `cond`."""
        return (self.ways(self.layers(x)[0])[0 if x.sum() > 0 else 1] ** 2).sum()


def test_layers_and_branches_from_pytorch() -> None:
    torch.manual_seed(0)
    module = Recurrent()
    model = exported(module, (torch.randn(3, 4, 5),), ["x"], ["loss"])
    assert {"LSTM", "If"} <= {n.op_type for n in model.graph.node}
    weights = {"one.bias": module.one.bias, "other.bias": module.other.bias}
    first = steep.grad(model, ["x", *weights])
    second = steep.grad(first, ["x"], outputs=["grad_x"])
    for sign, batch in ((1, 2), (-1, 5)):
        x = (sign * torch.rand(batch, 4, 5)).requires_grad_()
        v = torch.randn(x.shape)
        slopes = torch.autograd.grad(
            module.without_cond(x),
            [x, *weights.values()],
            create_graph=True,
            materialize_grads=True,
        )
        feed = {"x": x.detach().numpy(), "grad_grad_x": v.numpy()}
        results = run_both(first, {"x": feed["x"]})
        for name, value in zip(["x", *weights], slopes, strict=True):
            close(results[f"grad_{name}"], value)
        (wanted,) = torch.autograd.grad((slopes[0] * v).sum(), [x])
        close(run_both(second, feed)["grad_x_2"], wanted)


@pytest.mark.parametrize("attrs", [{}, {"reverse": 1}, {"exclusive": 1}])
def test_running_products_twice(attrs: dict) -> None:
    model = small(
        [helper.make_node("CumProd", ["x", "axis"], ["y"], **attrs)],
        {"x": ["n", "m"]},
        {"axis": np.array(1)},
        opset=26,
    )
    second = steep.grad(steep.grad(model, ["x"]), ["x"], outputs=["grad_x"])
    for shape in ((2, 5), (3, 2)):
        x, dy, v = (torch.randn(shape) for _ in range(3))
        x[0, 0] = 0
        x.requires_grad_()
        y = x.flip(1).cumprod(1).flip(1) if "reverse" in attrs else x.cumprod(1)
        if "exclusive" in attrs:
            y = torch.cat([torch.ones(shape[0], 1), y[:, :-1]], 1)
        (slope,) = torch.autograd.grad(y, [x], dy, create_graph=True)
        (wanted,) = torch.autograd.grad((slope * v).sum(), [x])
        feed = {"x": x.detach(), "grad_y": dy, "grad_grad_x": v}
        results = run_both(second, {n: t.numpy() for n, t in feed.items()})
        close(results["grad_x"], slope)
        close(results["grad_x_2"], wanted)


def test_extents_that_vary_keep_their_names(mlp) -> None:
    gradients = steep.grad(mlp[1], ["x"], outputs=["loss"])
    shape = gradients.graph.input[0].type.tensor_type.shape.dim
    assert shape[0].dim_param and shape[1].dim_value == 6


def test_refusals_name_what_is_wrong(mlp) -> None:
    with pytest.raises(steep.ModelError, match="no such float input") as caught:
        steep.grad(mlp[1], ["first.wieght"])
    assert "first.weight" in caught.value.expected
    with pytest.raises(steep.ModelError, match="no such float output"):
        steep.grad(mlp[1], ["x"], outputs=["z"])
    with pytest.raises(steep.ModelError, match="nothing to differentiate"):
        steep.grad(mlp[1], [])
    shapes = {"a": ["n", "c", "t"], "k": ["c", 1, "k"]}
    convolution = helper.make_node("CausalConvWithState", ["a", "k"], ["y", "state"], "peak")
    model = small([convolution], shapes, opset=27)
    with pytest.raises(steep.ModelError, match="peak"):
        steep.grad(model, ["a"])


def test_types_that_no_runtime_takes_are_refused() -> None:
    model = small(
        [
            helper.make_node("Greater", ["a", "b"], ["m"]),
            helper.make_node("Add", ["a", "m"], ["y"], "odd"),
        ],
        {"a": ["n", 4], "b": ["n", 4]},
    )
    with pytest.raises(steep.Error) as caught:
        steep.grad(model, ["a"])
    assert caught.value.node == "odd" and "bool" in caught.value.received


def test_the_program_writes_the_same_model(mlp, tmp_path: Path) -> None:
    onnx.save(mlp[1], tmp_path / "mlp.onnx")
    out = tmp_path / "grad.onnx"
    words = ("--wrt", "x,first.bias", "--output", "loss")
    program("grad", tmp_path / "mlp.onnx", "-o", out, *words)
    assert onnx.load(out) == steep.grad(mlp[1], ["x", "first.bias"], outputs=["loss"])
    assert "no such" in program("grad", tmp_path / "mlp.onnx", "-o", out, "--wrt", "none", code=3)


REDUCED = {
    "ReduceSum": lambda x: x.sum(1),
    "ReduceMean": lambda x: x.mean(1),
    "ReduceMax": lambda x: x.amax(1),
    "ReduceMin": lambda x: x.amin(1),
    "ReduceProd": lambda x: x.prod(1),
    "ReduceL1": lambda x: x.abs().sum(1),
    "ReduceL2": lambda x: x.square().sum(1).sqrt(),
    "ReduceLogSumExp": lambda x: x.logsumexp(1),
    "ReduceLogSum": lambda x: x.sum(1).log(),
    "ReduceSumSquare": lambda x: x.square().sum(1),
}


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("op", REDUCED)
def test_axes_that_are_fed(op, keep):
    extents = "a,b" if keep else "a"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18]> g (float[m,n] x, int64[1] axes) => '
        f"(float[{extents}] y) {{ y = {op} <keepdims = {keep}> (x, axes) }}"
    )
    x = torch.tensor([[1.0, 2, 4], [3, -1, 5]], requires_grad=True)
    y = REDUCED[op](x)
    dy = torch.tensor([1.0, -2])
    (wanted,) = torch.autograd.grad(y, x, dy)
    shape = (2, 1) if keep else (2,)
    feed = {"x": x.detach().numpy(), "axes": np.array([1]), "grad_y": dy.numpy().reshape(shape)}
    gradients = steep.grad(model, ["x"], ["y"])
    for session in (
        steep.InferenceSession(gradients),
        onnxruntime.InferenceSession(gradients.SerializeToString()),
    ):
        (found,) = session.run(["grad_x"], feed)
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5)

"""Muon, which updates matrices only, and Adafactor, whose moments are not of a weight's shape."""

import copy
import io

import numpy as np
import onnx
import onnx.parser
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import steep  # noqa: E402
from steep.patching import torch_versions  # noqa: E402

STEPS = 5
CHOICES = {
    "as it is": {},
    "match_rms_adamw": {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
    "without nesterov": {"nesterov": False, "momentum": 0.5},
    "spectral_unclamped": {"adjust_lr_fn": "spectral_unclamped"},
    "another iteration": {"ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5), "eps": 1e-3},
}


class Net(torch.nn.Module):
    """A tall matrix, a square one, a wide one, and parameters that are no matrices."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8, bias=False)
        self.norm = torch.nn.LayerNorm(8)
        self.second = torch.nn.Linear(8, 8, bias=False)
        self.third = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.third(torch.tanh(self.second(self.norm(self.first(x)))))

    def matrices(self):
        return [p for p in self.parameters() if p.ndim == 2]


def batches():
    torch.manual_seed(1)
    return [(torch.randn(6, 4), torch.randn(6, 3)) for _ in range(STEPS)]


def nets():
    torch.manual_seed(0)
    net = Net()
    return net, copy.deepcopy(net)


def step_of(net, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()

    return step


class Unrounded(TorchDispatchMode):
    """Copies to bfloat16 are in float32, however the release of PyTorch calls them."""

    def __torch_dispatch__(self, operator, _, args=(), kwargs=None):
        options = dict(kwargs or {})
        if options.get("dtype") is torch.bfloat16:
            options["dtype"] = torch.float32
        return operator(*args, **options)


@pytest.fixture
def in_float32(monkeypatch):
    """PyTorch's iteration in the gradient's type: it would round to bfloat16."""
    own = torch.optim.Muon.step

    def step(self):
        with Unrounded():
            return own(self)

    monkeypatch.setattr(torch.optim.Muon, "step", step)


def assert_same(net, twin, optimizers):
    for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    states = [o.state_dict()["state"] for o in optimizers]
    for i, expected in states[0].items():
        assert expected.keys() == states[1][i].keys()
        for kind, tensor in expected.items():
            torch.testing.assert_close(states[1][i][kind], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("choice", CHOICES)
def test_muon_is_that_of_pytorch(choice):
    if choice == "spectral_unclamped" and torch_versions.RELEASE < (2, 14):
        pytest.skip("PyTorch has it since 2.14")
    net, twin = nets()
    ours, theirs = (torch.optim.Muon(n.matrices(), lr=0.02, **CHOICES[choice]) for n in (twin, net))
    trainer, step = steep.trainer(twin, torch.nn.MSELoss(), ours), step_of(net, theirs)
    for t, batch in enumerate(batches()):
        for optimizer in (ours, theirs):  # as a schedule
            optimizer.param_groups[0]["lr"] = 0.02 / (t + 1)
        trainer.step(*batch)
        step(*batch)
        assert_same(net, twin, (theirs, ours))


def test_muon_is_that_of_pytorch_within_its_rounding():
    """Of a gradient of full rank: in the null space of another, PyTorch's step is rounding."""
    torch.manual_seed(0)
    net = torch.nn.Linear(16, 24, bias=False)
    twin, before = copy.deepcopy(net), net.weight.detach().clone()
    ours, theirs = (torch.optim.Muon(n.parameters(), lr=0.02) for n in (twin, net))
    batch = torch.randn(256, 16), torch.randn(256, 24)
    steep.trainer(twin, torch.nn.MSELoss(), ours).step(*batch)
    step_of(net, theirs)(*batch)
    apart, step = net.weight - twin.weight, net.weight - before
    assert 0 < apart.norm() < 0.04 * step.norm()


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("kind", ["Muon", "Adafactor"])
@pytest.mark.parametrize("first", ["PyTorch", "Steep"])
def test_state_dict_goes_both_ways(kind, first):
    def make(n):
        return getattr(torch.optim, kind)(n.matrices(), lr=0.02)

    whole, half = nets()
    other = copy.deepcopy(half)
    whole_optimizer, *optimizers = (make(n) for n in (whole, half, other))
    step = step_of(whole, whole_optimizer)
    ways = [step_of, lambda n, o: steep.trainer(n, torch.nn.MSELoss(), o).step]
    if first == "Steep":
        ways.reverse()
    steps = [way(n, o) for way, n, o in zip(ways, (half, other), optimizers, strict=True)]
    for t, batch in enumerate(batches()):
        if t == 3:
            file = io.BytesIO()
            torch.save((half.state_dict(), optimizers[0].state_dict()), file)
            file.seek(0)
            weights, state = torch.load(file, weights_only=True)
            other.load_state_dict(weights)
            optimizers[1].load_state_dict(state)
        step(*batch)
        steps[t >= 3](*batch)
    assert_same(whole, other, (whole_optimizer, optimizers[1]))


def model():
    """y = relu(x w + b) v, with a filter that scales x."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x, float[4, 6] w, float[6] b, float[6, 3] v, float[2, 2, 2] f)
            => (float[n, 3] y) {
          size = ReduceSumSquare <keepdims = 0> (f)
          scaled = Mul(x, size)
          z = Gemm(scaled, w, b)
          h = Relu(z)
          y = MatMul(h, v)
        }"""
    proto = onnx.parser.parse_model(text)
    draw = np.random.default_rng(0)
    for given in proto.graph.input[1:]:
        extents = [d.dim_value for d in given.type.tensor_type.shape.dim]
        value = (0.5 * draw.standard_normal(extents)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, given.name))
    del proto.graph.input[1:]
    return proto


def session(**options):
    return steep.TrainingSession(
        model(), loss="mse", trainable=["w", "b", "v", "f"], **{"lr": 0.02, **options}
    )


MIXED = {"optimizer": "muon", "groups": [(["b", "f"], {"optimizer": "adamw", "lr": 0.01})]}


def test_muon_names_what_is_no_matrix():
    with pytest.raises(steep.ModelError, match="matrices only") as refused:
        session(optimizer="muon")
    text = str(refused.value)
    assert "b float32[6]" in text
    assert "f float32[2, 2, 2]" in text
    assert "group" in text
    with pytest.raises(steep.ModelError, match="matrices only"):
        session(groups=[(["w", "b"], {"optimizer": "muon"})])
    session(optimizer="muon", frozen=["b", "f"])
    session(**MIXED)


@pytest.mark.usefixtures("in_float32")
def test_muon_beside_adamw():
    """A session whose groups have optimizers of their own, and two optimizers of PyTorch."""
    ours = session(**MIXED)
    p = {
        i.name: torch.nn.Parameter(torch.from_numpy(onnx.numpy_helper.to_array(i).copy()))
        for i in model().graph.initializer
    }
    muon = torch.optim.Muon([p["w"], p["v"]], lr=0.02, weight_decay=0.0)
    adamw = torch.optim.AdamW([p["b"], p["f"]], lr=0.01, weight_decay=0.0)
    for x, y in batches():
        ours.step(x, y)
        h = torch.relu(x * (p["f"] ** 2).sum() @ p["w"] + p["b"])
        for optimizer in (muon, adamw):
            optimizer.zero_grad()
        torch.nn.functional.mse_loss(h @ p["v"], y).backward()
        muon.step()
        adamw.step()
    for name, tensor in ours.weights().items():
        torch.testing.assert_close(
            torch.from_dlpack(tensor), p[name].detach(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("options", [MIXED, {"optimizer": "adafactor"}], ids=["muon", "adafactor"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resumed_run_is_the_same(options, precision, tmp_path):
    whole, half, rest = (session(precision=precision, **options) for _ in range(3))
    losses = []
    for t, (x, y) in enumerate(batches()):
        if t == 3:
            half.save_checkpoint(tmp_path / "run")
            rest.load_checkpoint(tmp_path / "run")
        losses.append(whole.step(x, y).loss)
        assert (half if t < 3 else rest).step(x, y).loss == losses[-1]
    assert losses[-1] < losses[0] or precision != "fp32"
    for name, tensor in whole.weights().items():
        np.testing.assert_array_equal(rest.weights()[name].numpy(), tensor.numpy())
    for name, tensor in whole.optimizer_state().items():
        np.testing.assert_array_equal(rest.optimizer_state()[name].numpy(), tensor.numpy())


def test_adafactor_stores_rows_and_columns():
    state = session(optimizer="adafactor").optimizer_state()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes == {
        **{"row_var/w": (4, 1), "col_var/w": (1, 6), "row_var/v": (6, 1), "col_var/v": (1, 3)},
        **{"variance/b": (6,), "row_var/f": (2, 2, 1), "col_var/f": (2, 1, 2)},
    }


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"optimizer": "muon", "ns_coefficients": (1.0, 2.0)}, "coefficients"),
        ({"optimizer": "muon", "ns_steps": 100}, "ns_steps"),
        ({"optimizer": "muon", "adjust_lr_fn": "mine"}, "match_rms_adamw"),
        ({"optimizer": "muon", "momentum": -1.0}, "momentum"),
        ({"optimizer": "muon", "eps": -1.0}, "epsilon"),
        ({"optimizer": "muon", "amsgrad": True}, "amsgrad"),
        ({"optimizer": "adafactor", "nesterov": True}, "nesterov"),
        ({"optimizer": "adafactor", "beta2_decay": 0.5}, "beta2_decay.*at most 0"),
        ({"optimizer": "adafactor", "epsilon2": -1.0}, "epsilon2"),
        ({"optimizer": "adafactor", "clip_threshold": 0.5}, "clip_threshold"),
    ],
)
def test_settings_out_of_range(settings, error):
    with pytest.raises(steep.ModelError, match=f"(?s){error}"):
        session(**settings)


def test_a_group_refuses_what_an_optimizer_has_not():
    with pytest.raises(steep.ModelError, match=r"(?s)no such setting.*received: rate"):
        session(groups=[(["w"], {"optimizer": "muon", "rate": 1.0})])

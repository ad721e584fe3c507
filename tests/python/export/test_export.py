"""Files of PyTorch models: what they compute in evaluation mode, for any extents, or an error."""

import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep.export.module_to_onnx import export  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Tied(torch.nn.Module):
    """Two arguments, a buffer, one weight used twice, results in a dict."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, x, *others):
        y = self.second(torch.tanh(self.first(x))) * self.scale
        return {"y": y, "count": 2, "more": [y + other for other in others]}


def test_a_file_computes_what_the_module_does():
    net = Tied().eval()
    example = [torch.randn(3, 4), torch.randn(3, 4)]
    before = torch.get_rng_state()
    proto = export(net, example)
    assert torch.equal(torch.get_rng_state(), before)
    assert [v.name for v in proto.graph.input] == ["x", "others.0"]
    held = [i.name for i in proto.graph.initializer if len(i.dims) == 2]
    assert len(held) == 1  # the weight that both layers have
    session = steep.InferenceSession(proto.SerializeToString())
    for rows in (3, 5, 2):
        x, other = torch.randn(rows, 4), torch.randn(rows, 4)
        wanted = net(x, other)
        y, more = session.run(None, {"x": x.numpy(), "others.0": other.numpy()})
        np.testing.assert_allclose(y, wanted["y"].detach().numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(more, wanted["more"][0].detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [18, 20, 23])
def test_the_opset_is_the_users(opset):
    proto = export(torch.nn.Linear(4, 3), [torch.randn(2, 4)], opset=opset)
    assert {o.domain: o.version for o in proto.opset_import}[""] == opset


class Halves(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)[: -(-x.shape[0] // 2)] * (-x.shape[0] // 4)


def test_quotients_of_extents_are_rounded_down():
    net = Halves(4, 3).eval()
    session = steep.InferenceSession(export(net, [torch.randn(4, 4)]).SerializeToString())
    for rows in (4, 5, 7):
        x = torch.randn(rows, 4)
        (y,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(y, net(x).detach().numpy(), rtol=1e-5, atol=1e-6)


class Counts(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen += x.sum(0)
        return super().forward(x)


class Scales(torch.nn.Linear):
    def forward(self, x):
        x.mul_(2)
        return super().forward(x)


class Remembers(torch.nn.Linear):
    def forward(self, x):
        self.last = super().forward(x)
        return self.last + 1


class Branches(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y


class Spectrum(torch.nn.Linear):
    def forward(self, x):
        return torch.fft.fft(super().forward(x))


REFUSED = {
    "forward writes into seen": Counts,
    "forward writes into x": lambda: Scales(4, 4),
    "forward keeps last": lambda: Remembers(4, 4),
    "data-dependent": lambda: Branches(4, 4),
    "is complex": lambda: Spectrum(4, 4),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_file_cannot_say_is_refused(message, capfd):
    net, x = REFUSED[message](), torch.randn(3, 4)
    attributes = {*vars(net)}
    before, state = x.clone(), {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(steep.ModelError, match=message):
        export(net, [x])
    assert torch.equal(x, before) and {*vars(net)} == attributes
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert capfd.readouterr() == ("", "")


def test_arguments_that_forward_does_not_take():
    with pytest.raises(TypeError, match=r"Linear\.forward\(\)"):
        export(torch.nn.Linear(4, 3), [torch.randn(2, 4)] * 2)


class BranchesOnExtents(torch.nn.Module):
    def forward(self, x, y):
        return x.sum(0) + y.sum(0) if x.shape[0] > y.shape[0] else x.sum(0) * 2


def test_a_branch_on_extents_is_said(caplog):
    with caplog.at_level(logging.WARNING, "steep"):
        export(BranchesOnExtents(), [torch.ones(5, 2), torch.ones(3, 2)])
    (said,) = [r.getMessage() for r in caplog.records if r.name == "steep"]
    assert "x.shape[0] > y.shape[0]" in said and "test_export.py" in said
    caplog.clear()
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Flatten())
    with caplog.at_level(logging.WARNING, "steep"):
        export(module, [torch.ones(5, 4)])
    assert not caplog.records


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_float_type_are_embedded(kind):
    module = torch.nn.Linear(4, 3).to(kind)
    x = torch.linspace(-1, 1, 8).view(2, 4).to(kind)
    model = export(module, [x])
    (y,) = steep.InferenceSession(model.SerializeToString()).run(None, {"input": x})
    expected = module(x).detach()
    rtol = 1e-6 if kind == torch.float64 else 1e-2
    torch.testing.assert_close(
        torch.tensor(y.astype("float64")), expected.double(), rtol=rtol, atol=rtol
    )

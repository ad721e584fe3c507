"""Activations that the engine makes part of a batch normalisation: values and slopes of PyTorch."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from steep import ORTModule  # noqa: E402
from steep.patching.torch_versions import CLAMP_IS_FLAT_AT_BOUNDS  # noqa: E402


class Clamp(nn.Module):
    def forward(self, x):
        return x.clamp(0, 6)


ACTIVATIONS = {"Relu": nn.ReLU, "Hardtanh": nn.ReLU6, "Clip": Clamp}


def at_bounds(norm):
    """Give a layer channels whose results are 0, 6 and NaN, and one beyond both bounds."""
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 9.0, 1.0]))
        norm.bias.copy_(torch.tensor([0.1, 0.0, 6.0, torch.nan, 3.0, -0.2]))
    return norm


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_part_of_the_normalisation(name):
    torch.manual_seed(0)
    eager = nn.Sequential(at_bounds(nn.BatchNorm2d(6)), ACTIVATIONS[name](), nn.Flatten())
    captured = ORTModule(copy.deepcopy(eager))
    x = torch.randn(3, 6, 4, 5)
    found = []
    for module in (eager, captured):
        own = x.clone().requires_grad_()
        y = module(own)
        with torch.no_grad():
            module.get_parameter("0.bias").zero_()  # PyTorch's backward does not read it
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
        found.append([y, own.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    # since 2.14 the gradient of a clamp is another one at its bounds than that of ONNX's Clip
    apart = name == "Clip" and CLAMP_IS_FLAT_AT_BOUNDS
    assert captured.dump().count(f'activation="{name}"') == (0 if apart else 2)

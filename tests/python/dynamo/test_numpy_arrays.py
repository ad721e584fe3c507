"""Tensors that NumPy does not take are refused in a captured module as in PyTorch."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from steep import ORTModule  # noqa: E402


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, x):
        return self.function(x * self.weight) + x


REFUSED = {
    "requires gradients": lambda y: torch.from_numpy(y.numpy()),
    "bfloat16": lambda y: torch.from_numpy(y.detach().bfloat16().numpy()).float(),
    "bfloat16, forced": lambda y: torch.from_numpy(y.bfloat16().numpy(force=True)).float(),
    "asarray": lambda y: torch.from_numpy(np.asarray(y)),
    "asarray of bfloat16": lambda y: torch.from_numpy(np.asarray(y.detach().bfloat16())).float(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_numpy_does_not_take_is_refused(name):
    module, x = Applied(REFUSED[name]), torch.ones(3, 2)
    with pytest.raises((RuntimeError, TypeError)) as expected:
        module(x)
    with pytest.raises(expected.type) as found:
        ORTModule(module)(x)
    assert str(found.value) == str(expected.value)


TAKEN = {
    "detached": lambda y: torch.from_numpy(y.detach().numpy() * 2),
    "forced": lambda y: torch.from_numpy(y.numpy(force=True)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_numpy_takes_is_computed(name):
    module, x = Applied(TAKEN[name]), torch.ones(3, 2)
    torch.testing.assert_close(ORTModule(module)(x), module(x))

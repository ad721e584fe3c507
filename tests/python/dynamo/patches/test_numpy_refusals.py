"""Tensors that PyTorch hands no array out for are refused within forward too."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.function = function

    def forward(self, x):
        y = self.layer(x)
        return self.function(y) + y


REFUSED = {
    "bfloat16": lambda y: torch.from_numpy(y.detach().bfloat16().numpy()),
    "bfloat16, forced": lambda y: torch.from_numpy(y.bfloat16().numpy(force=True)),
    "asarray of bfloat16": lambda y: torch.from_numpy(np.asarray(y.detach().bfloat16())),
    "with a gradient": lambda y: torch.from_numpy(y.numpy()),
    "asarray with a gradient": lambda y: torch.from_numpy(np.asarray(y)),
    "sin with a gradient": lambda y: torch.from_numpy(np.sin(y)),
}
TAKEN = {
    "detached": lambda y: torch.from_numpy(y.detach().numpy() * 2),
    "forced": lambda y: torch.from_numpy(y.numpy(force=True) * 2),
    "asarray": lambda y: torch.from_numpy(np.asarray(y.detach()) * 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_numpy_cannot_hold_is_refused_as_in_pytorch(name):
    net, x = Of(REFUSED[name]), torch.ones(2, 3)
    with pytest.raises((TypeError, RuntimeError)) as expected:
        net(x)
    with pytest.raises(expected.type, match=re.escape(str(expected.value))):
        ORTModule(net)(x)


@pytest.mark.parametrize("name", TAKEN)
def test_other_arrays_are_in_the_graph(name):
    net, x = Of(TAKEN[name]), torch.ones(2, 3)
    torch.testing.assert_close(ORTModule(net, fallback=None)(x), net(x))

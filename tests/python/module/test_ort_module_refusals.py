"""What ORTModule cannot run it refuses, naming the node; what it runs it runs rightly."""

import logging

import pytest

torch = pytest.importorskip("torch")

from module_pairs import (  # noqa: E402
    Net,
    assert_close,
    assert_same_gradients,
    pair,
    seed,  # noqa: F401
)

import steep  # noqa: E402
from steep import ORTModule  # noqa: E402


@torch.library.custom_op("mine::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


@mystery.register_fake
def _(x):
    return torch.empty_like(x)


class Mystery(torch.nn.Module):
    """With an operator that only its author knows."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(3))

    def forward(self, x):
        return (self.weight @ x + mystery(x.detach())).sum()


def test_what_cannot_run_raises_and_names_the_node():
    net = ORTModule(Mystery(), fallback=None)
    with pytest.raises(steep.Error, match=r"mine\.mystery") as e:
        net(torch.randn(3, 3))
    assert isinstance(e.value, (steep.ModelError, steep.ProviderError))
    assert net.fallback_calls == 0


def test_fallback_is_opted_in_and_counted(caplog):
    torch_net, net = pair(Mystery(), fallback="torch")
    x = torch.randn(3, 3)
    with caplog.at_level(logging.WARNING, "steep"):
        for m in (torch_net, net):
            m(x).backward()
            m(x).backward()
    assert net.fallback_calls == 2
    assert "PyTorch instead" in caplog.text
    assert_same_gradients(torch_net, net)


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        ORTModule(lambda x: x)
    with pytest.raises(ValueError, match="fallback"):
        ORTModule(Net(), fallback="numpy")
    net = ORTModule(Net())
    with pytest.raises(TypeError, match="argument: 'x'"):
        net()
    with pytest.raises(TypeError, match="must be Tensor"):
        net(object())
    net(torch.randn(2, 6))  # and still works


def test_index_out_of_range_leaves_all_usable():
    torch_net, net = pair(torch.nn.Embedding(5, 3))
    for bad in (5, -6, 2**40):
        with pytest.raises(steep.DataError) as e:
            net(torch.tensor([0, bad]))
        assert e.value.op
    ids = torch.tensor([0, 4])
    assert_close(net(ids), torch_net(ids))

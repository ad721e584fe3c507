"""Casts to float32 around autocast: what a trace without autocast leaves out comes back."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import autocast, nn  # noqa: E402

from steep import ORTModule  # noqa: E402


def narrow(enabled=True):
    return autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


def float32_island(first, second, x):
    with narrow():
        h = first(x)
        with narrow(enabled=False):
            return second(h.float())


def within_a_region(first, second, x):
    with narrow():
        h = first(x)
        with narrow(enabled=False):
            q = h.float()
            h = torch.softmax(q @ q.T, -1) @ q
        return second(h)


def after_a_region(first, second, x):
    with narrow():
        h = first(x)
    return second(h.float())


def by_dtype(first, second, x):
    with narrow():
        h = first(x).to(x.dtype)
    return second(h) + second(h.type_as(x))


def of_elements(first, second, x):
    with narrow():
        h = first(x)
    return h + h.float().exp(), h * 2


class Two(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.function = function

    def forward(self, x):
        return self.function(self.first, self.second, x)


@pytest.mark.parametrize("outer", [False, True], ids=["plain", "under autocast"])
@pytest.mark.parametrize(
    "function",
    [float32_island, within_a_region, after_a_region, by_dtype, of_elements],
    ids=lambda f: f.__name__,
)
def test_float32_after_autocast(function, outer):
    module = Two(function)
    net, x = ORTModule(copy.deepcopy(module), fallback=None), torch.randn(3, 4)
    for each in (module, net):
        with narrow(enabled=outer):
            results = each(x)
        results = results if isinstance(results, tuple) else (results,)
        each.results = [r.detach() for r in results]
        sum(r.float().square().sum() for r in results).backward()
    for found, wanted in zip(net.results, module.results, strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    for found, wanted in zip(net.parameters(), module.parameters(), strict=True):
        if wanted.grad is not None:
            scale = max(1.0, float(wanted.grad.abs().max()))
            torch.testing.assert_close(found.grad, wanted.grad, rtol=0, atol=3e-2 * scale)
    assert net.report().whole

"""Functions beside a layer, compared with PyTorch's: in the engine as a whole, or in parts."""

import copy

import torch
from torch import nn

from steep import ORTModule

WIDTH = 6


class Fn(nn.Module):
    """A function of a layer's result and its argument, [N, WIDTH] both."""

    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x, *rest):
        return self.function(self.layer(x), x, *rest)


def run(net, args):
    args = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    leaves = torch.utils._pytree.tree_leaves(net(*args))
    results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    net.zero_grad()
    sum(
        (r * torch.linspace(-1, 2, r.numel(), dtype=r.dtype).view(r.shape)).sum()
        for r in results
        if r.requires_grad
    ).backward()
    state = [*(p.grad for p in net.parameters()), *(b.clone() for b in net.buffers())]
    return [r.detach() for r in results], [a.grad for a in args], state


def check(module, calls, where):
    """Compare over calls; ``where`` is "engine" or "parts"."""
    ours = ORTModule(copy.deepcopy(module), **({"fallback": None} if where == "engine" else {}))
    for args in calls:
        expected, actual = run(module, args), run(ours, args)
        for rights, values in zip(expected, actual, strict=True):
            for right, value in zip(rights, values, strict=True):
                assert (right is None) == (value is None)
                if right is None:
                    continue
                tolerance = 1e-9 if right.dtype == torch.float64 else 2e-5
                scale = float(right.nan_to_num(0, 0, 0).abs().max()) if right.numel() else 0
                torch.testing.assert_close(
                    value, right, rtol=tolerance, atol=tolerance * scale, equal_nan=True
                )
    report = ours.report()
    in_torch = report.breaks or any(graph.in_torch for graph in report.graphs)
    assert bool(in_torch) == (where == "parts"), report
    return report


def calls(dtype, *counts):
    return [(torch.randn(n, WIDTH, dtype=dtype),) for n in counts]

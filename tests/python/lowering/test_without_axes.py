"""Operators along axis 0 or -1 of a tensor without dimensions, which ONNX does not allow."""

import pytest
import torch
from compared_functions import Fn, check

ZERO = torch.tensor(0)

ALONG_AXES = {
    "all": lambda x: [(x < 9).all(0) * x, (x > 9).all(-1, True) * x],
    "amax": lambda x: [x.amax(0), x.amax(-1, True), x.amax()],
    "amin": lambda x: [x.amin(0, True), x.amin((-1,))],
    "aminmax": lambda x: [*x.aminmax(dim=0), *x.aminmax(dim=-1, keepdim=True)],
    "flip": lambda x: [x.flip(0), x.flip(-1)],
    "prod": lambda x: [x.prod(0), x.long().prod(-1), x.long().prod(0, True)],
    "std": lambda x: [x.std(0, correction=0), *torch.std_mean(x, -1, correction=0, keepdim=True)],
    "var": lambda x: [x.var(0, correction=0), *torch.var_mean(x, -1, correction=0, keepdim=True)],
    "scatter": lambda x: [x.scatter(0, ZERO, x * 2), x.scatter(-1, ZERO, 3.0)],
    "scatter_add": lambda x: [x.scatter_add(0, ZERO, x * 2)],
    "scatter_reduce": lambda x: [
        x.scatter_reduce(-1, ZERO, x * 2, kind) for kind in ("mean", "amax", "sum")
    ],
}


@pytest.mark.parametrize("name", ALONG_AXES)
def test_tensors_without_dimensions(name):
    module = Fn(lambda y, x: [y, *ALONG_AXES[name](y.sum())]).double()
    check(module, [(torch.randn(n, 6, dtype=torch.float64),) for n in (4, 7)], "engine")

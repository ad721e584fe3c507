"""Options of PyTorch's functions that exporters say otherwise: results and gradients are its."""

import math

import pytest
import torch
import torch.nn.functional as F
from results_and_gradients import run
from torch import nn

from steep import ModelError, ORTModule

# of [N, 2, 14, 8]
OPTIONS = {
    "pixels by scales": lambda x: [
        F.interpolate(x, scale_factor=(1.7, 0.6)),
        F.interpolate(x, scale_factor=(2, 0.7)),
        F.interpolate(x[:, 0], scale_factor=1.7),
        F.interpolate(x[:, None], scale_factor=(1, 1.5, 0.5)),
    ],
    # 9 · 14 / 18 is 7, and less by float32's quotient of 18 and 14
    "pixels by size": lambda x: F.interpolate(x, size=(18, 16)),
    "aligned corners by scales": lambda x: [
        F.interpolate(x, scale_factor=1.7, mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=1.7, mode="bicubic", align_corners=True),
        F.interpolate(x[:, None], scale_factor=(1, 1.7, 0.7), mode="trilinear", align_corners=True),
    ],
    "round in what is left": lambda x: F.pad(x, (-1, 2, 2, -1), "circular"),
    "volumes without biases": lambda x: F.conv3d(x[None, :2], x[None, :2, :, :2, :2]),
    "norms of a number": lambda x: [
        x.sum().norm(dim=0, keepdim=True) * torch.linalg.vector_norm(x.mean(), 3, 0, True),
        F.cosine_similarity(x.sum(), x.mean(), 0),
    ],
    "small norms": lambda x: [
        F.cosine_similarity(x, x.flip(1), 1, eps=5.0),
        F.cosine_similarity(x * 0, x, -1),
        F.cosine_similarity(x[:1], x.flip(2), 2, 1.5),
    ],
    "wide sums of exponentials": lambda x: [
        (x * 90).logcumsumexp(2),
        torch.where(x > 0, -math.inf, x).logcumsumexp(3),
        torch.where(x > 1, math.inf, x).logcumsumexp(3)[0],
    ],
    "logit": lambda x: [x.logit(0.2), x.logit(0.6), x.sigmoid().logit(), x.logit().nan_to_num()],
    "negative scale": lambda x: [
        F.scaled_dot_product_attention(x, x.flip(1), x, scale=-0.7),
        F.scaled_dot_product_attention(x, x, x, x[..., :14, :1] > 0, scale=-0.7),
    ],
    "widened first": lambda x: [
        x.softmax(3, dtype=torch.float64),
        x.log_softmax(1, dtype=torch.float64),
        x.half().softmax(3, dtype=torch.float32),
        x.sum().softmax(0, dtype=torch.float64),
    ],
    "angles and closeness of integers": lambda x: [
        x * torch.angle((x * 4).long()) + torch.angle(x) + torch.angle(x.log()).nan_to_num(5),
        x * torch.isclose((x * 9).long(), (x.flip(1) * 9).long(), 0.5, 1.2),
        x * torch.isclose((x * 9).int(), (x.flip(1) * 9).int(), 0, 0),
        x * torch.isclose(x > 0, x.flip(1) > 0),
    ],
    "logarithms": lambda x: [
        torch.log2(torch.tensor([2.0**k for k in range(8)]) * (x > -99)).floor() * x,
        torch.log10(torch.tensor([10.0**k for k in range(8)]) * (x > -99)).floor() * x,
        x.abs().log2() + x.abs().log10(),
    ],
    "variance and mean": lambda x: [
        torch.var_mean(x, 1, correction=0),
        torch.var_mean(x, (0, 3), keepdim=True),
        torch.var_mean(x[:1].detach(), 0, correction=2),
        x.var(1, keepdim=True),
        x.var((0, 3), correction=0, keepdim=True),
        torch.var_mean(x),
    ],
    "special's names": lambda x: [
        torch.special.sinc(x * (x > 0)),
        torch.special.expm1(x * 1e-6),
        torch.special.log1p(x.abs() * 1e-6),
        torch.special.logit(x, 0.2),
    ],
    # PyTorch's slope is of 1 / alpha in float32
    "celu of a negative number": lambda x: F.celu(x.detach() + x * 0, -2.0),
    "place of the extreme": lambda x: [
        x.argmax(keepdim=True),
        x.argmin(keepdim=True),
        x.argmax(),
        x.argmin(1, keepdim=True),
    ],
    "order of bools": lambda x: torch.sort(x > 0, dim=1, stable=True),
    "means of integers": lambda x: [
        (x * 9).to(kind).scatter_reduce(3, (x > 0).long(), (x * 7).to(kind), "mean")
        for kind in (torch.int64, torch.int32)
    ],
    "numbers that integers are not": lambda x: [
        f((x * 9).long())
        for f in (
            *(torch.floor, torch.ceil, torch.round, torch.trunc),
            *(torch.isnan, torch.isinf, torch.isfinite, torch.nan_to_num),
        )
    ],
}


class Every(nn.Module):
    """Each function, of an argument of its own: one capture for all."""

    def forward(self, *args):
        return [f(x * 1) for f, x in zip(OPTIONS.values(), args, strict=True)]


@pytest.mark.parametrize(("dtype", "extents"), [(torch.float32, (2, 3)), (torch.float64, (2,))])
def test_options_are_pytorchs(dtype, extents):
    torch.manual_seed(0)
    ours = ORTModule(Every(), fallback=None)
    for n in extents:
        args = torch.randn(len(OPTIONS), n, 2, 14, 8, dtype=dtype)
        expected, made = run(Every(), args), run(ours, args)
        for name, rights, values in zip(OPTIONS, expected, made, strict=True):
            for right, value in zip(rights, values, strict=True):
                if right is None:
                    assert value is None, name
                    continue
                of_images = name == "aligned corners by scales"  # their weights are float32's
                least = 1e-5 if dtype == torch.float32 or of_images else 1e-11
                tolerance = 1e-3 if name == "widened first" and right is rights[-1] else least
                tolerance = max(tolerance, 1e-6) if right.dtype == torch.float32 else tolerance
                finite = right.detach().double().nan_to_num(0, 0, 0).abs().max()
                torch.testing.assert_close(
                    value,
                    right,
                    rtol=tolerance,
                    atol=tolerance * finite.item(),
                    equal_nan=True,
                    msg=lambda m, name=name: f"{name}: {m}",
                )


class Narrowed(nn.Module):
    def forward(self, x):
        options = {"mode": "bilinear", "align_corners": True, "antialias": True}
        return F.interpolate(x, (7, 3), **options)


def test_antialias_with_corners_is_refused():
    """ONNX's filter is as wide as extents make a step, PyTorch's as corners do."""
    with pytest.raises(ModelError, match="antialias and align_corners"):
        ORTModule(Narrowed(), fallback=None)(torch.ones(1, 2, 14, 8))

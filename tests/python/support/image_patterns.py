"""Functions of images with their options: a table of patterns (patterns.py)."""

import torch
import torch.nn.functional as F
from capture_patterns import Fn, rows
from patterns import Pattern

IMAGES = [(torch.randn(2, 3, n, n + 1),) for n in (5, 8)]


def of_images(function):
    return Pattern(lambda: Fn(lambda m, x: function(x * (1 + m.layer.bias[0]))), IMAGES)


PATTERNS = {
    "pixel shuffle": Pattern(
        lambda: Fn(
            lambda m, x: F.pixel_shuffle(
                m.layer(x)[:, None].unflatten(1, (1, 1)).reshape(1, 6, -1, 1)[:, :4], 2
            )
        ),
        rows(2, 4),
    ),
    "pixel unshuffle": of_images(lambda x: F.pixel_unshuffle(x[:, :, :4, :4], 2).mul(2)),
    "grid_sample": of_images(
        lambda x: [
            F.grid_sample(
                x,
                F.affine_grid(
                    torch.eye(2, 3).expand(2, 2, 3) * 1.3, [2, 3, 4, 4], align_corners=corners
                ),
                how,
                pad,
                corners,
            )
            for how in ("bilinear", "nearest")
            for pad in ("zeros", "border", "reflection")
            for corners in (True, False)
        ]
    ),
    "adaptive pools": of_images(
        lambda x: (
            F.adaptive_avg_pool2d(x, (2, 3)),
            F.adaptive_max_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (None, 1)),
            F.adaptive_avg_pool1d(x[0], 2),
        )
    ),
    "pools": of_images(
        lambda x: (
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.max_pool2d(x, 2, return_indices=True),
            F.avg_pool2d(x, 3, 2, 1, True, False),
            F.avg_pool2d(x, 2, divisor_override=3),
            F.lp_pool2d(x, 2, 2),
        )
    ),
    "pads": of_images(
        lambda x: (
            [
                F.pad(x, (1, 2, 2, 1), mode)
                for mode in ("constant", "reflect", "replicate", "circular")
            ]
            + [F.pad(x, (-1, 2, 1, -1), value=2.5), F.pad(x, (0, 0, 0, 0, 1, 0))]
        )
    ),
    "resized": of_images(
        lambda x: [
            F.interpolate(x, size=(7, 4), mode=mode, **more)
            for mode, more in (
                ("nearest", {}),
                ("bilinear", {"align_corners": True}),
                ("bilinear", {"align_corners": False}),
                ("bicubic", {"align_corners": False}),
                ("bilinear", {"antialias": True}),
                ("area", {}),
                ("nearest-exact", {}),
            )
        ]
    ),
    "normalizations": of_images(
        lambda x: (
            F.layer_norm(x, x.shape[2:], eps=0.1),
            F.rms_norm(x, x.shape[-1:]),
            F.rms_norm(x, x.shape[-1:], eps=0.5),
            F.group_norm(x, 3),
            F.local_response_norm(x, 2, k=2.0),
            F.normalize(x * 0, dim=1),
            F.normalize(x, p=1, dim=(2, 3)),
        )
    ),
}

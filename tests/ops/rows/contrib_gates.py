"""Gates of language models, which exporters write in com.microsoft."""

import torch
import torch.nn.functional as F

from .contrib import ALONE, of_contrib, rms_norm
from .row import SHAPES, floats, table

ROWS, _row = table()
row = of_contrib(_row)

WIDE = [(2, 3, 4), (1, 1, 2), (3, 5, 8), (2, 1, 6), (4, 2), (1, 7, 4), (1, 2, 32), (0, 3, 4)]
WIDE += [(2, 0, 4), (5, 10)]

for _x in WIDE:
    row(
        "GatedAdd",
        *(floats(*_x), floats(*_x), floats(*_x[:-1], 1)),
        torch=lambda x, y, g: x + y * g,
    )
    for _kind, _gate in (("silu", F.silu), ("swish", F.silu), ("sigmoid", torch.sigmoid)):
        for _parts in (1, 2) if _kind == "silu" else (1,):
            row(
                "GatedRMSNorm",
                *(floats(*_x), floats(_x[-1] // _parts), floats(*_x)),
                attrs={"activation": _kind, "epsilon": 1e-3},
                torch=lambda x, s, g, gate=_gate: (
                    (
                        rms_norm(x.unflatten(-1, (-1, len(s))), s, epsilon=1e-3)[0].reshape(x.shape)
                        if x.numel()
                        else x * s.repeat(x.shape[-1] // len(s))
                    )
                    * gate(g)
                ),
            )
    row(
        "SwiGLU",
        floats(*_x),
        note=ALONE,
        torch=lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    )
    row(
        "SwiGLU",
        *(floats(*_x, away=(1.25,)), floats(*_x, away=(-1.25, 1.25))),
        attrs={"activation_alpha": 1.702, "activation_beta": 1.0, "limit": 1.25},
        note=ALONE,
        torch=lambda g, u: (
            g.clamp(max=1.25)
            * torch.sigmoid(1.702 * g.clamp(max=1.25))
            * (u.clamp(-1.25, 1.25) + 1)
        ),
    )

for _x in [x for x in WIDE if len(x) == 3]:
    _heads = floats(_x[-1])
    row(
        "LinearAttentionGate",
        *(floats(*_x), _heads, _heads),
        torch=lambda a, d, s: s * F.softplus(a + d),
    )
    row(
        "LinearAttentionGate",
        *(floats(*_x), _heads, _heads, floats(*_x)),
        outputs=2,
        torch=lambda a, d, s, b: (s * F.softplus(a + d), torch.sigmoid(b)),
    )

for _x in SHAPES:
    row("ScaledSiLU", floats(*_x), attrs={"alpha": 0.5}, torch=lambda x: F.silu(0.5 * x))
row("ScaledSiLU", floats(2, 3), torch=F.silu)
row("ScaledSiLU", floats(2, 3), floats(), torch=lambda x, s: F.silu(x * s))

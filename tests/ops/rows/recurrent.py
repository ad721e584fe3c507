"""LSTM, GRU and RNN."""

import functools

import numpy as np
import torch
import torch.nn.functional as F

from .row import floats, table

ROWS, row = table()

FUNCTIONS = {
    "Tanh": lambda x, a, b: torch.tanh(x),
    "Sigmoid": lambda x, a, b: torch.sigmoid(x),
    "Relu": lambda x, a, b: torch.relu(x),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: torch.where(x < 0, a * x, x),
    "ScaledTanh": lambda x, a, b: a * torch.tanh(b * x),
    "HardSigmoid": lambda x, a, b: (a * x + b).clamp(0, 1),
    "Elu": lambda x, a, b: torch.where(x < 0, a * torch.expm1(x), x),
    "Softsign": lambda x, a, b: F.softsign(x),
    "Softplus": lambda x, a, b: F.softplus(x),
    "ThresholdedRelu": lambda x, a, b: torch.where(x > a, x, torch.zeros_like(x)),
}
ALPHA = {"Affine": 1, "LeakyRelu": 0.01, "ScaledTanh": 1, "HardSigmoid": 0.2, "Elu": 1}
ALPHA["ThresholdedRelu"] = 1
BETA = {"Affine": 0, "ScaledTanh": 1, "HardSigmoid": 0.5}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def functions(op, directions, attrs):
    names = attrs.get("activations") or DEFAULTS[op] * directions
    alphas, betas = list(attrs.get("activation_alpha", [])), list(attrs.get("activation_beta", []))
    clip = attrs.get("clip")
    made = []
    for name in names:
        a = alphas.pop(0) if name in ALPHA and alphas else ALPHA.get(name)
        b = betas.pop(0) if name in BETA and betas else BETA.get(name)

        def f(x, run=FUNCTIONS[name], a=a, b=b):
            return run(x if clip is None else x.clamp(-clip, clip), a, b)

        made.append(f)
    each = len(names) // directions
    return [made[d * each : (d + 1) * each] for d in range(directions)]


def cell(op, attrs, f, x, h, c, w, r, wb, rb, p):
    """One step of every element of the batch."""
    n = h.shape[-1]
    if op == "RNN":
        return f[0](x @ w.T + h @ r.T + wb + rb), c
    if op == "GRU":
        z = f[0](x @ w[:n].T + h @ r[:n].T + wb[:n] + rb[:n])
        g = f[0](x @ w[n : 2 * n].T + h @ r[n : 2 * n].T + wb[n : 2 * n] + rb[n : 2 * n])
        inner = x @ w[2 * n :].T + wb[2 * n :]
        if attrs.get("linear_before_reset"):
            new = f[1](inner + g * (h @ r[2 * n :].T + rb[2 * n :]))
        else:
            new = f[1](inner + (g * h) @ r[2 * n :].T + rb[2 * n :])
        return (1 - z) * new + z * h, c
    i, o, g, new = (x @ w.T + h @ r.T + wb + rb).split(n, -1)
    i = f[0](i + p[:n] * c)
    g = 1 - i if attrs.get("input_forget") else f[0](g + p[2 * n :] * c)
    c = g * c + i * f[1](new)
    return f[0](o + p[n : 2 * n] * c) * f[2](c), c


def layer(op, attrs, x, w, r, b=None, lens=None, h0=None, c0=None, p=None):
    if attrs.get("layout"):
        x = x.transpose(0, 1)
        h0, c0 = (None if s is None else s.transpose(0, 1) for s in (h0, c0))
    steps, batch, _ = x.shape
    directions, width, hidden = r.shape
    b = x.new_zeros(directions, 2 * width) if b is None else b
    p = x.new_zeros(directions, 3 * hidden) if p is None else p
    h0 = x.new_zeros(directions, batch, hidden) if h0 is None else h0
    c0 = x.new_zeros(directions, batch, hidden) if c0 is None else c0
    lens = torch.full((batch,), steps) if lens is None else lens
    ys, hs, cs = [], [], []
    for d, f in enumerate(functions(op, directions, attrs)):
        backwards = d == 1 or attrs.get("direction") == "reverse"
        h, c, y = h0[d], c0[d], [None] * steps
        for t in reversed(range(steps)) if backwards else range(steps):
            there = (t < lens)[:, None]
            new_h, new_c = cell(
                op, attrs, f, x[t], h, c, w[d], r[d], b[d][:width], b[d][width:], p[d]
            )
            h, c = torch.where(there, new_h, h), torch.where(there, new_c, c)
            y[t] = torch.where(there, new_h, torch.zeros_like(new_h))
        ys.append(torch.stack(y))
        hs.append(h)
        cs.append(c)
    y, h, c = torch.stack(ys, 1), torch.stack(hs), torch.stack(cs)
    if attrs.get("layout"):
        y, h, c = y.permute(2, 0, 1, 3), h.transpose(0, 1), c.transpose(0, 1)
    return (y, h, c) if op == "LSTM" else (y, h)


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(
    op,
    steps=3,
    batch=2,
    size=2,
    hidden=3,
    with_="",
    lens=None,
    reference=False,
    twice=False,
    smooth=True,
    **attrs,
):
    """`with_`: which optional inputs there are: b, h, c, p. `twice`: the gradient has a row too."""
    d = 2 if attrs.get("direction") == "bidirectional" else 1
    width = GATES[op] * hidden
    x = (batch, steps, size) if attrs.get("layout") else (steps, batch, size)
    state = (batch, d, hidden) if attrs.get("layout") else (d, batch, hidden)
    inputs = [
        floats(*x),
        floats(d, width, size, low=-1, high=1),
        floats(d, width, hidden, low=-0.5, high=0.5),
    ]
    inputs.append(floats(d, 2 * width) if "b" in with_ else None)
    inputs.append(None if lens is None else np.array(lens, np.int32))
    inputs.append(floats(*state) if "h" in with_ else None)
    if op == "LSTM":
        inputs.append(floats(*state) if "c" in with_ else None)
        inputs.append(floats(d, 3 * hidden) if "p" in with_ else None)
    while inputs[-1] is None:
        inputs.pop()
    outputs = 3 if op == "LSTM" else 2
    row(
        op,
        *inputs,
        outputs=outputs,
        attrs={"hidden_size": hidden, **attrs},
        reference=reference,
        smooth=smooth,
        torch=lambda *t, o=op, a=attrs: layer(o, a, *t),
    )
    y = (batch, steps, d, hidden) if attrs.get("layout") else (steps, d, batch, hidden)
    padded = inputs + [None] * (8 - len(inputs))

    def gradient(dy, dh, dc, *t, o=op, a=attrs):
        with torch.enable_grad():
            leaves = [
                v.detach().requires_grad_() if v is not None and v.is_floating_point() else v
                for v in t
            ]
            results = layer(o, a, *leaves[: 8 if o == "LSTM" else 6])
            wrt = [v for i, v in enumerate(leaves) if i != 4 and v is not None]
            found = torch.autograd.grad(results, wrt, [dy, dh, dc][: len(results)])
        known = [i for i, v in enumerate(leaves) if i != 4 and v is not None]
        made = dict(zip(known, found, strict=True))
        return [made.get(i) for i in range(8) if i != 4]

    add = functools.partial(
        row,
        "steep.RecurrentGrad",
        floats(*y),
        floats(*state),
        floats(*state) if op == "LSTM" else None,
        *padded,
        outputs=7,
        attrs={"cell": op, "hidden_size": hidden, **attrs},
    )
    add(seeded=(), smooth=smooth, torch=gradient)
    if twice:
        add(note="twice")


for _op in ("LSTM", "GRU", "RNN"):
    recurrent(_op, steps=1, batch=1, size=1, hidden=1, reference=True)
    recurrent(_op, with_="b", reference=True)
    recurrent(_op, with_="bh", direction="reverse")
    recurrent(_op, with_="bhc", direction="bidirectional")
    recurrent(_op, with_="b", lens=[1, 3], direction="bidirectional")
    recurrent(_op, with_="bhcp", hidden=2, lens=[2, 3], direction="reverse", twice=True)
    recurrent(_op, hidden=1, batch=1, layout=1, clip=5.0, direction="bidirectional", twice=True)
    recurrent(_op, with_="bhc", lens=[2, 0])
    recurrent(_op, with_="bhc", layout=1, direction="bidirectional", lens=[3, 2])
    recurrent(_op, with_="h", layout=1)
    recurrent(_op, with_="b", batch=0)
    recurrent(_op, with_="bhcp", clip=0.75, direction="reverse")
    recurrent(_op, steps=5, batch=3, size=17, hidden=19, with_="bhcp")
for _op in ("LSTM", "GRU", "RNN"):
    for _reset in (0, 1) if _op == "GRU" else (0,):
        _more = {"smooth": False} | ({"linear_before_reset": 1} if _reset else {})
        recurrent(_op, steps=1, batch=1, size=4, hidden=16, with_="bhc", **_more)
        recurrent(_op, steps=1, batch=5, size=3, hidden=33, direction="reverse", **_more)
        recurrent(_op, steps=9, batch=1, size=17, hidden=20, with_="c", **_more)
        recurrent(
            _op, steps=6, batch=4, size=31, hidden=18, with_="b", direction="bidirectional", **_more
        )
        recurrent(_op, steps=4, batch=3, size=5, hidden=8, with_="bhc", layout=1, **_more)
recurrent("RNN", with_="bh", direction="bidirectional", activations=["Relu", "Relu"])
recurrent("RNN", with_="bh", direction="bidirectional", activations=["Relu", "Tanh"])
for _lens in (None, [3, 1]):
    for _direction in ("forward", "bidirectional"):
        recurrent("GRU", with_="bh", linear_before_reset=1, direction=_direction, lens=_lens)
        recurrent("LSTM", with_="bhcp", direction=_direction, lens=_lens)
        recurrent("LSTM", with_="bhcp", direction=_direction, input_forget=1, lens=_lens)
recurrent("GRU", with_="bh", linear_before_reset=1, reference=True)
recurrent("GRU", with_="bh", hidden=2, linear_before_reset=1, twice=True)
for _f, _alpha, _beta in (
    ("Affine", [0.5], [0.25]),
    ("LeakyRelu", [0.125], []),
    ("ScaledTanh", [1.5], [0.75]),
    ("HardSigmoid", [], []),
    ("Elu", [0.75], []),
    ("Softsign", [], []),
    ("Softplus", [], []),
    ("ThresholdedRelu", [0.25], []),
    ("Relu", [], []),
):
    _more = {"activation_alpha": _alpha} if _alpha else {}
    _more |= {"activation_beta": _beta} if _beta else {}
    recurrent("RNN", with_="bh", activations=[_f], **_more)
recurrent(
    "LSTM",
    with_="bhcp",
    direction="bidirectional",
    activations=["Sigmoid", "Softsign", "Tanh", "HardSigmoid", "Tanh", "ScaledTanh"],
    activation_alpha=[0.25, 1.25],
    activation_beta=[0.5, 0.5],
)
recurrent("GRU", with_="b", activations=["HardSigmoid", "Softplus"])

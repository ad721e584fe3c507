"""Optimizer steps and the norm of all gradients."""

from functools import partial

import numpy as np
import torch

from .row import exactly, floats, integer, table

ROWS, row = table()

# Extents that fill vectors of a kernel, and that leave a rest.
SHAPES = [(), (1,), (5,), (16,), (67,), (1, 1), (2, 3, 4), (2, 1, 3, 2), (0,), (0, 3), (2, 0, 3)]

LR, STEP, SCALE = np.array(0.01, np.float32), integer(3), np.array(0.5, np.float32)


def torch_step(optimizer, param, grad, state, scale):
    """One step of one of PyTorch's optimizers that already has `state`."""
    p = torch.nn.Parameter(param.detach().clone())
    p.grad = grad.detach() * (1 if scale is None else scale.to(grad.dtype))
    o = optimizer([p])
    o.state[p] = {k: v.detach().clone() if torch.is_tensor(v) else v for k, v in state.items()}
    o.step()
    return p.detach(), o.state[p]


def torch_sgd(param, grad, lr, step, scale=None, buf=None, **attrs):
    o = partial(torch.optim.SGD, lr=float(lr), **attrs)
    state = {} if buf is None or int(step) == 1 else {"momentum_buffer": buf}
    new, state = torch_step(o, param, grad, state, scale)
    return new if buf is None else (new, state["momentum_buffer"])


def sgd(shape, attrs, buf, step, scale=None):
    row(
        "steep.SGD",
        floats(*shape),
        floats(*shape),
        LR,
        integer(step),
        scale,
        *([floats(*shape)] if buf else []),
        attrs=attrs,
        outputs=2 if buf else 1,
        smooth=False,
        note=f"step {step}",
        torch=lambda *x: torch_sgd(
            *x, **{k: bool(v) if k in ("nesterov", "maximize") else v for k, v in attrs.items()}
        ),
    )


for _attrs, _buf, _step in (
    ({}, False, 3),
    ({"weight_decay": 0.125}, False, 3),
    ({"maximize": 1}, False, 1),
    ({"momentum": 0.875}, True, 3),
    ({"momentum": 0.875, "dampening": 0.25}, True, 1),
    ({"momentum": 0.875, "dampening": 0.25, "weight_decay": 0.125}, True, 2),
    ({"momentum": 0.875, "nesterov": 1}, True, 3),
):
    for _scale in (None, SCALE):
        sgd((3, 4), _attrs, _buf, _step, _scale)
for _shape in SHAPES:
    sgd(_shape, {"weight_decay": 0.125}, False, 3)
    sgd(_shape, {"momentum": 0.875, "dampening": 0.25, "weight_decay": 0.125}, True, 2, SCALE)


for _shape in SHAPES:
    row("steep.Assign", floats(*_shape), floats(*_shape), smooth=False, torch=lambda s, v: v)


SGD_NAMES = ("momentum", "dampening", "weight_decay")
ADAM_NAMES = ("beta1", "beta2", "epsilon", "weight_decay")


def fed(names, attrs):
    """The rate and the attributes that a node may read beside it, and what is left of them."""
    numbers = [float(LR), *(attrs.get(name, 0.0) for name in names)]
    return np.array(numbers), {k: v for k, v in attrs.items() if k not in names}


for _attrs, _buf in (
    ({"weight_decay": 0.125}, False),
    ({"momentum": 0.875, "dampening": 0.25, "weight_decay": 0.125}, True),
    ({"momentum": 0.875, "nesterov": 1}, True),
):
    _settings, _left = fed(SGD_NAMES, _attrs)
    for _step in (1, 3):
        row(
            "steep.SGD",
            floats(3, 4),
            floats(3, 4),
            _settings,
            np.array(_step, np.float32),
            None,
            *([floats(3, 4)] if _buf else []),
            attrs=_left,
            outputs=2 if _buf else 1,
            smooth=False,
            note=f"fed, step {_step}",
            torch=lambda p, g, lr, *rest, _attrs=_attrs: torch_sgd(p, g, lr[0], *rest, **_attrs),
        )


def torch_adam(
    param,
    grad,
    lr,
    step,
    scale,
    m,
    v,
    *,
    decoupled=0,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-8,
    weight_decay=0.0,
):
    if decoupled == 2:
        grad = grad if scale is None else grad * scale.to(grad)
        new_m, new_v = m * beta1 + grad * (1 - beta1), v * beta2 + grad * grad * (1 - beta2)
        size = float(lr) * (1 - beta2 ** float(step)) ** 0.5 / (1 - beta1 ** float(step))
        new = param - size * new_m / (new_v.sqrt() + epsilon)
        return new - float(lr) * weight_decay * new, new_m, new_v
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    o = partial(kind, lr=float(lr), betas=(beta1, beta2), eps=epsilon, weight_decay=weight_decay)
    state = {"step": torch.tensor(float(step) - 1), "exp_avg": m, "exp_avg_sq": v}
    new, state = torch_step(o, param, grad, state, scale)
    return new, state["exp_avg"], state["exp_avg_sq"]


def lamb(
    param,
    grad,
    lr,
    step,
    scale,
    m,
    v,
    *,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-6,
    weight_decay=0.0,
    bias_correction=1,
):
    """You et al. 2020, algorithm 2."""
    grad = grad * (1 if scale is None else scale.to(grad.dtype))
    m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
    c1, c2 = (1 - beta1 ** int(step), 1 - beta2 ** int(step)) if bias_correction else (1, 1)
    r = (m / c1) / ((v / c2).sqrt() + epsilon) + weight_decay * param
    a, b = float(param.norm()), float(r.norm())
    return param - float(lr) * (a / b if a and b else 1) * r, m, v


def adaptive(op, in_torch, shape, attrs, step, scale=None):
    row(
        op,
        floats(*shape),
        floats(*shape),
        LR,
        integer(step),
        scale,
        floats(*shape),
        floats(*shape, low=0.0, high=0.5),
        attrs=attrs,
        outputs=3,
        smooth=False,
        note=f"step {step}",
        torch=lambda *x: in_torch(*x, **attrs),
    )


ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
for _attrs in (
    {},
    {"weight_decay": 0.125},
    {"weight_decay": 0.125, "decoupled": 1},
    {"weight_decay": 0.125, "decoupled": 2},
    {"beta1": 0.75, "beta2": 0.875, "epsilon": 0.0625},
):
    for _step, _scale in ((1, None), (5, SCALE)):
        adaptive("steep.Adam", torch_adam, (3, 4), {**ADAM, **_attrs}, _step, _scale)
for _op, _torch, _attrs in (
    ("steep.Adam", torch_adam, {**ADAM, "weight_decay": 0.125}),
    ("steep.Adam", torch_adam, {**ADAM, "weight_decay": 0.125, "decoupled": 1}),
    ("steep.Adam", torch_adam, {**ADAM, "weight_decay": 0.125, "decoupled": 2}),
    ("steep.Lamb", lamb, {**ADAM, "weight_decay": 0.125}),
):
    _settings, _left = fed(ADAM_NAMES, _attrs)
    for _step in (1, 5):
        row(
            _op,
            floats(3, 4),
            floats(3, 4),
            _settings,
            np.array(_step, np.float32),
            None,
            floats(3, 4),
            floats(3, 4, low=0.0, high=0.5),
            attrs=_left,
            outputs=3,
            smooth=False,
            note=f"fed, step {_step}",
            torch=lambda p, g, lr, *rest, _torch=_torch, _attrs=_attrs: _torch(
                p, g, lr[0], *rest, **_attrs
            ),
        )
LAMB = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "bias_correction": 1}
for _attrs in ({}, {"weight_decay": 0.125}, {"weight_decay": 0.125, "bias_correction": 0}):
    for _step, _scale in ((1, None), (5, SCALE)):
        adaptive("steep.Lamb", lamb, (3, 4), {**LAMB, **_attrs}, _step, _scale)
for _shape in SHAPES:
    for _decoupled in (0, 1, 2):
        _attrs = {**ADAM, "weight_decay": 0.125, "decoupled": _decoupled}
        adaptive("steep.Adam", torch_adam, _shape, _attrs, 5, None if _decoupled else SCALE)
    adaptive("steep.Lamb", lamb, _shape, {**LAMB, "weight_decay": 0.125}, 5, SCALE)
row(
    "steep.Lamb",
    exactly([0.0, 0.0]),
    floats(2),
    LR,
    STEP,
    None,
    floats(2),
    floats(2, low=0.0),
    attrs={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6},
    outputs=3,
    smooth=False,
    torch=lamb,
    note="zero parameter",
)
# In the order of the node's states: what the optimizer calls them.
OTHERS = {
    "NAdam": ("exp_avg", "exp_avg_sq", "mu_product"),
    "RAdam": ("exp_avg", "exp_avg_sq"),
    "Adagrad": ("sum",),
    "Adadelta": ("square_avg", "acc_delta"),
    "RMSprop": ("square_avg", "grad_avg", "momentum_buffer"),
    "Adamax": ("exp_avg", "exp_inf"),
    "Adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
}
FLAGS = ("centered", "maximize", "amsgrad")


def by_torch(name, kept, attrs, param, grad, lr, step, scale, *states):
    """The step by PyTorch's optimizer of this name."""
    settings = {k: v for k, v in attrs.items() if not k.startswith("beta")}
    settings = {k: bool(v) if k in FLAGS else v for k, v in settings.items()}
    settings["eps"] = settings.pop("epsilon")
    settings["amsgrad"] = "max_exp_avg_sq" in kept
    if not settings["amsgrad"]:
        del settings["amsgrad"]
    if "beta1" in attrs:
        settings["betas"] = attrs["beta1"], attrs["beta2"]
    if settings.pop("decoupled", 0):
        settings["decoupled_weight_decay"] = True
    o = partial(getattr(torch.optim, name), lr=float(lr.reshape(-1)[0]), **settings)
    state = {"step": torch.tensor(float(step) - 1), **dict(zip(kept, states, strict=True))}
    new, state = torch_step(o, param, grad, state, scale)
    return new, *(state[kind] for kind in kept)


def another(name, attrs, step, scale=None, shape=(3, 4), names=None):
    """A row; with `names`, the numbers of these names are fed."""
    kept = OTHERS[name]
    if name == "RMSprop":
        kept = tuple(
            kind
            for kind in kept
            if (kind != "grad_avg" or attrs.get("centered"))
            and (kind != "momentum_buffer" or attrs.get("momentum"))
        )
    positive = {"exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg", "acc_delta", "exp_inf"}
    states = [
        np.array(0.75, np.float32)
        if kind == "mu_product"
        else floats(*shape, low=0.25, high=0.5)
        if kind in positive
        else floats(*shape, low=-0.25, high=0.25)
        for kind in kept
    ]
    settings, left = (LR, attrs) if names is None else fed(names, attrs)
    row(
        f"steep.{name}",
        floats(*shape),
        floats(*shape),
        settings,
        integer(step) if names is None else np.array(step, np.float32),
        scale,
        *states,
        attrs=left,
        outputs=1 + len(kept),
        smooth=False,
        note=f"{'fed, ' if names else ''}step {step}",
        torch=partial(by_torch, name, kept, attrs),
    )


BETAS = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3}
for _name, _names, _variants in (
    (
        "NAdam",
        (*ADAM_NAMES, "momentum_decay"),
        ({**BETAS, "momentum_decay": 4e-3}, {**BETAS, "momentum_decay": 0.5, "decoupled": 1}),
    ),
    ("RAdam", ADAM_NAMES, (BETAS, {**BETAS, "decoupled": 1})),
    (
        "Adagrad",
        ("lr_decay", "epsilon", "weight_decay"),
        ({"lr_decay": 0.25, "epsilon": 1e-10},),
    ),
    ("Adadelta", ("rho", "epsilon", "weight_decay"), ({"rho": 0.9, "epsilon": 1e-6},)),
    (
        "RMSprop",
        ("alpha", "epsilon", "weight_decay", "momentum"),
        (
            {"alpha": 0.875, "epsilon": 1e-3},
            {"alpha": 0.875, "epsilon": 1e-3, "centered": 1},
            {"alpha": 0.875, "epsilon": 1e-3, "momentum": 0.5},
            {"alpha": 0.875, "epsilon": 1e-3, "momentum": 0.5, "centered": 1},
        ),
    ),
    ("Adamax", ADAM_NAMES, (BETAS,)),
    ("Adam", ADAM_NAMES, (BETAS, {**BETAS, "decoupled": 1})),
):
    for _attrs in _variants:
        for _step, _scale, _more in (
            (1, None, {}),
            (5, SCALE, {"weight_decay": 0.125}),
            (40, None, {"weight_decay": 0.125, "maximize": 1}),
        ):
            another(_name, {**_attrs, **_more}, _step, _scale)
            another(_name, {**_attrs, **_more}, _step, names=_names)
    for _shape in SHAPES:
        another(_name, {**_variants[-1], "weight_decay": 0.125}, 7, SCALE, _shape)

# The states have other shapes than the parameter, or the parameter is a matrix.
MATRICES = [(1, 1), (3, 4), (4, 3), (5, 5), (1, 6), (6, 1), (16, 9), (0, 3), (3, 0), (2, 67)]
MUON_NAMES = ("momentum", "epsilon", "weight_decay", "ns_a", "ns_b", "ns_c")
MUON = {"momentum": 0.95, "epsilon": 1e-7, "ns_a": 3.4445, "ns_b": -4.775, "ns_c": 2.0315}


def muon(param, grad, lr, step, scale, buf, **attrs):
    """torch.optim.Muon, whose iteration is in bfloat16, with the iteration in the given dtype."""
    grad = grad * (1 if scale is None else scale.to(grad.dtype))
    grad = -grad if attrs.get("maximize") else grad
    momentum = attrs["momentum"]
    buf = momentum * buf + (1 - momentum) * grad
    x = momentum * buf + (1 - momentum) * grad if attrs.get("nesterov") else buf
    rows, columns = param.shape
    x = x.T if rows > columns else x
    x = x / x.norm().clamp(min=attrs["epsilon"])
    for _ in range(attrs.get("ns_steps", 5)):
        gram = x @ x.T
        x = attrs["ns_a"] * x + (attrs["ns_b"] * gram + attrs["ns_c"] * gram @ gram) @ x
    x = x.T if rows > columns else x
    rate = float(lr.reshape(-1)[0])
    shrunk = param * (1 - rate * attrs.get("weight_decay", 0.0))
    if attrs.get("match_rms"):
        rate *= 0.2 * max(rows, columns) ** 0.5
    elif columns:
        rate *= max(0 if attrs.get("unclamped") else 1, rows / columns) ** 0.5
    return shrunk - rate * x, buf


def muon_row(shape, attrs, scale=None, fed_numbers=False, grad=None):
    settings, left = fed(MUON_NAMES, attrs) if fed_numbers else (LR, attrs)
    row(
        "steep.Muon",
        floats(*shape),
        floats(*shape) if grad is None else grad,
        settings,
        np.array(2, np.float32) if fed_numbers else STEP,
        scale,
        floats(*shape) if grad is None else exactly(np.zeros(shape)),
        attrs=left,
        outputs=2,
        smooth=False,
        note="fed" if fed_numbers else "",
        torch=partial(muon, **attrs),
    )


for _shape in MATRICES:
    muon_row(_shape, {**MUON, "nesterov": 1}, SCALE)
    muon_row(_shape, {**MUON, "weight_decay": 0.125, "match_rms": 1}, fed_numbers=True)
    muon_row(_shape, {**MUON, "unclamped": 1})
for _attrs in (
    {"nesterov": 0},
    {"nesterov": 1, "maximize": 1, "weight_decay": 0.125},
    {"ns_steps": 0},
    {"ns_steps": 2, "ns_a": 2.0, "ns_b": -1.5, "ns_c": 0.5, "epsilon": 0.5},
    {"momentum": 0.0, "nesterov": 1},
):
    muon_row((4, 6), {**MUON, **_attrs})
muon_row((4, 6), {**MUON, "weight_decay": 0.125}, grad=exactly(np.zeros((4, 6))))

ADAFACTOR_NAMES = ("beta2_decay", "epsilon", "epsilon2", "clip_threshold", "weight_decay")
ADAFACTOR = {"beta2_decay": -0.8, "epsilon": -1.0, "epsilon2": 1e-3, "clip_threshold": 1.0}


def adafactor(param, grad, lr, step, scale, *states, **attrs):
    """torch.optim.Adafactor; what is empty stays as it is."""
    kept = ("row_var", "col_var") if param.dim() > 1 else ("variance",)
    if param.numel() == 0:
        less = 1 - float(step) ** attrs["beta2_decay"]
        return param, *(less * state for state in states)
    o = partial(
        torch.optim.Adafactor,
        lr=float(lr.reshape(-1)[0]),
        beta2_decay=attrs["beta2_decay"],
        eps=(attrs["epsilon"] if attrs["epsilon"] >= 0 else None, attrs["epsilon2"]),
        d=attrs["clip_threshold"],
        weight_decay=attrs.get("weight_decay", 0.0),
        maximize=bool(attrs.get("maximize")),
    )
    state = {"step": torch.tensor(float(step) - 1), **dict(zip(kept, states, strict=True))}
    new, state = torch_step(o, param, grad, state, scale)
    return new, *(state[kind] for kind in kept)


def adafactor_row(shape, attrs, step=3, scale=None, fed_numbers=False, grad=None, lr=LR):
    settings, left = fed(ADAFACTOR_NAMES, attrs) if fed_numbers else (lr, attrs)
    kept = [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])] if len(shape) > 1 else [shape]
    row(
        "steep.Adafactor",
        floats(*shape),
        floats(*shape) if grad is None else grad,
        settings,
        np.array(step, np.float32) if fed_numbers else integer(step),
        scale,
        *[floats(*each, low=0.25, high=0.5) for each in kept],
        attrs=left,
        outputs=1 + len(kept),
        smooth=False,
        note=f"step {step}" + (f", fed {attrs}" if fed_numbers else ""),
        torch=partial(adafactor, **attrs),
    )


for _shape in dict.fromkeys([*SHAPES, *MATRICES]):
    adafactor_row(_shape, ADAFACTOR, 3, SCALE)
    adafactor_row(_shape, {**ADAFACTOR, "weight_decay": 0.125}, 5, fed_numbers=True)
for _shape in ((7,), (3, 4), (2, 3, 4)):
    for _attrs in (
        {"maximize": 1, "weight_decay": 0.125},
        {"beta2_decay": -0.5, "epsilon": 0.5},
        {"epsilon2": 4.0, "clip_threshold": 2.0},
    ):
        adafactor_row(_shape, {**ADAFACTOR, **_attrs}, 1)
        adafactor_row(_shape, {**ADAFACTOR, **_attrs}, 40, fed_numbers=True)
    # The rate is 1 over the root of the step, and there is no gradient.
    adafactor_row(_shape, ADAFACTOR, 9, lr=np.array(2.0, np.float32))
    adafactor_row(_shape, ADAFACTOR, 1, grad=exactly(np.zeros(_shape)))

for _shapes in (
    *([shape] for shape in SHAPES),
    [(3, 4)],
    [(3, 4), (), (5,)],
    [(0, 3), (2,)],
    [(67,), (2, 3, 4), (0,), (1, 1)],
    [(0,), (2, 0, 3)],
):
    row(
        "steep.GlobalNorm",
        *[floats(*s) for s in _shapes],
        smooth=False,
        note="n",
        torch=lambda *x: sum(v.square().sum() for v in x).sqrt().float(),
    )

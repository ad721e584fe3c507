"""What changes from call to call, what is shared, and state of every kind: a table of patterns."""

import collections
import functools

import torch
import torch.nn.functional as F
from capture_patterns import WIDTH, Fn, rows
from patterns import Pattern
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint


def of(function, *calls, parts=dict, **others):
    return Pattern(lambda: Fn(function, **parts()), calls or rows(3, 5, 4), **others)


def changed(attribute, values):
    """Return what sets an attribute of the module before each call."""
    return lambda m, k: setattr(m, attribute, values[k])


def in_mode(m, k):
    m.train(k % 2 == 0)


def freeze(m, k):
    m.layer.weight.requires_grad_(k % 2 == 0)


def widen(m, k):
    m.to(torch.float64 if k % 2 else torch.float32)


def replace_buffer(m, k):
    m.kept = torch.full((WIDTH,), k + 1.0)


def replace_parameter(m, k):
    if k == 1:
        m.layer.weight = nn.Parameter(m.layer.weight.detach() * 2)
    if k == 2:
        m.layer = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.eye_(m.layer.weight)


def hook_then_none(m, k):
    if k == 1:
        m.handle = m.layer.register_forward_hook(lambda layer, args, y: y * 2)
    if k == 2:
        m.handle.remove()


@torch.no_grad()
def teacher(m, x):
    return m.layer(x)


def grad_modes(m, x):
    with torch.no_grad():
        a = m.layer(x)
        with torch.enable_grad():
            b = m.layer(x)
    torch.set_grad_enabled(False)
    c = m.layer(x) * 3
    torch.set_grad_enabled(True)
    with torch.set_grad_enabled(m.training):
        d = m.layer(x) * 2
    return a, b, c, d


def written_unseen(m, x):
    y = m.layer(x)
    z, v = y * 1, y[1:]
    with torch.no_grad():
        v.mul_(2)
        y[0] = 3
        z.masked_fill_(x > 0, -torch.inf)
    return y, y * z.exp(), torch.where(x > 0, 0, z)


def sorted_into(m, x):
    y, values, places = m.layer(x), m.layer(x) * 2, torch.zeros(x.shape, dtype=torch.int64)
    with torch.no_grad():
        torch.sort(y, out=(values, places))
    return y * values, places


def halved(m, x):
    while x.shape[0] > 1:  # of one row, nothing is computed
        x = m.layer(x[::2])
    return x


def own_gradient(m, x):
    inner = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(m.layer(inner).square().sum(), inner)
    return m.layer(x) * slope


def written_by_twin(m, a, b):
    a.add_(1)
    return m.layer(a) * b


def written_then_viewed(m, x):
    v = x[1:]
    x.mul_(2)
    return v, m.layer(v), x.view(-1)[1:]


def reshaped(m, x):
    x.unsqueeze_(0)
    return m.layer(x)


def transposed(m, x):
    x.t_()
    return m.layer(x.t())


def logged(m, x):
    y = m.layer(x)
    m.log.append(y.detach().sum())
    return y * len(m.log)


def given_a_dict(m, x, state):
    state["seen"] = state["seen"] + x.detach().sum()
    state["last"] = m.layer(x)
    return state["last"] * 2, state["seen"]


def lazily(m, x):
    if not hasattr(m, "mean"):
        m.register_buffer("mean", x.detach().mean(0))
    m.mean.lerp_(x.detach().mean(0), 0.5)
    return m.layer(x - m.mean)


def ring(m, x):
    m.kept[m.at % 4] = m.layer(x).detach().mean(0)
    m.at += 1
    return m.layer(x) + m.kept.mean(0)


def view_of_a_buffer(m, x):
    m.kept.add_(1)
    return m.layer(x) + m.kept, m.kept, m.kept[1:]


def moving_average(m, x):
    with torch.no_grad():
        for slow, fast in zip(m.slow.parameters(), m.layer.parameters(), strict=True):
            slow.mul_(0.9).add_(fast, alpha=0.1)
    return F.mse_loss(m.layer(x), m.slow(x).detach())


def without_history(m, x):
    return m.layer(x).detach(), m.layer(x).data, m.layer(x)


def of_requires_grad(m, x):
    y = m.layer(x)
    return y * 2 if x.requires_grad else y * 3


def called(m, x):
    weights = {n: p * 2 for n, p in m.layer.named_parameters()}
    return functional_call(m.layer, weights, (x,))


def checkpoint_twice(m, x):
    def inner(y):
        return checkpoint(lambda z: torch.tanh(m.layer(z)), y, use_reentrant=False) * y

    return checkpoint(inner, x, use_reentrant=False)


def checkpoint_without_gradient(m, x):
    def inner(y):
        with torch.no_grad():
            scale = m.layer(y).abs().amax()
        return m.layer(y) / scale, scale

    return checkpoint(inner, x, use_reentrant=False)


class Doubled(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).t()


def symmetric():
    layer = nn.Linear(WIDTH, WIDTH)
    parametrize.register_parametrization(layer, "weight", Doubled())
    return {"symmetric": layer}


def hooked_layer():
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_forward_pre_hook(
        lambda m, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True
    )
    layer.register_forward_hook(lambda m, args, kwargs, y: y + args[0], with_kwargs=True)
    return {"hooked": layer}


def parameters():
    return {
        "some": nn.ParameterList([torch.randn(WIDTH) for _ in range(3)]),
        "named": nn.ParameterDict({"a": torch.randn(WIDTH), "b": torch.randn(WIDTH)}),
    }


def of_parameters(m, x):
    return sum(x * p for p in m.some) + m.named["a"] * m.named["b"] + m.layer(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second.weight = self.first.weight
        self.loop = nn.ModuleList([self.first, self.second, self.first])
        self.register_buffer("scale", torch.ones(WIDTH), persistent=False)

    def forward(self, x):
        for layer in self.loop:
            x = torch.tanh(layer(x)) * self.scale
        self.scale = self.scale * 0.5
        return x


Step = collections.namedtuple("Step", "state loss")


class Residual(nn.Sequential):
    def forward(self, x, *, scale=1.0, **options):
        return x + scale * super().forward(x) * options.get("more", 1)


def with_options(m, x, options):
    return m.block(x, **options)


def copied(k, x):
    with torch.inference_mode():
        return (x.detach().clone(),)


def buffers(**shapes):
    return lambda: {name: torch.zeros(shape) for name, shape in shapes.items()}


def view_input_only(m, x):
    return x.view(-1)[::2], x.t(), m.layer.weight[0], m.layer(x)


@functools.lru_cache
def cached_mask(n):
    return torch.ones(n, n).tril()


X = torch.randn(3, WIDTH)

PATTERNS = {
    # from call to call
    "modes": of(
        lambda m, x: m.norm(m.layer(x)),
        parts=lambda: {"norm": nn.BatchNorm1d(WIDTH)},
        before=in_mode,
    ),
    "dropouts at rest": of(
        lambda m, x: m.drops(m.layer(x)),
        parts=lambda: {
            "drops": nn.Sequential(
                nn.Dropout(0.5), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)
            ).eval()
        },
    ),
    "dropouts of nothing": of(
        lambda m, x: [drop(m.layer(x)) for drop in m.drops] + [F.dropout(m.layer(x), 1.0)],
        parts=lambda: {
            "drops": nn.ModuleList([nn.Dropout(0.0), nn.Dropout1d(0.0), nn.AlphaDropout(0.0)])
        },
    ),
    "attribute": of(lambda m, x: m.layer(x) * m.scale, before=changed("scale", [1.0, 2.0, -3])),
    "attribute of other types": of(
        lambda m, x: m.layer(x) * (1 if m.scale is None else m.scale),
        before=changed("scale", [None, 2, torch.full((WIDTH,), 0.5)]),
    ),
    "attribute that is a function": of(
        lambda m, x: m.act(m.layer(x)), before=changed("act", [torch.relu, torch.tanh, F.gelu])
    ),
    "buffer replaced": of(
        lambda m, x: m.layer(x) * m.kept, parts=buffers(kept=WIDTH), before=replace_buffer
    ),
    "parameter replaced": of(lambda m, x: m.layer(x), before=replace_parameter),
    "frozen and thawed": of(lambda m, x: torch.tanh(m.layer(x)), before=freeze),
    "other precision": of(
        lambda m, x: torch.tanh(m.layer(x)),
        *rows(3, 3, 3),
        before=widen,
        given=lambda k, x: (x.double() if k % 2 else x,),
    ),
    "hook added and removed": of(lambda m, x: m.layer(x), before=hook_then_none),
    "with and without history": of(
        of_requires_grad, given=lambda k, x: (x if k % 2 else x.detach(),)
    ),
    "number, then tensor": of(
        lambda m, x, n: m.layer(x) * n,
        (X, 2),
        (X, 2.5),
        (X, True),
        (X, torch.tensor(2)),
        (X, torch.ones(1, 1, 1)),
    ),
    "numbers without bounds": of(
        lambda m, x, n: m.layer(x) * n + n // 3 - n % 3, (X, -7), (X, 0), (X, 1), (X, 10**10)
    ),
    "lists of other lengths": of(
        lambda m, xs: sum(m.layer(x) for x in xs),
        *[([X * i for i in range(n)],) for n in (1, 3, 2)],
    ),
    "options": of(
        with_options,
        (X, {}),
        (X, {"scale": 2.0}),
        (X, {"more": 3}),
        parts=lambda: {"block": Residual(nn.Linear(WIDTH, WIDTH), nn.ReLU())},
    ),
    "other ranks": of(lambda m, x: m.layer(x).sum(-1), (X,), (X[0],), (X[None],), (X[None, None],)),
    "other dtypes": of(
        lambda m, x: m.layer(x.float()), (X,), (X.double(),), (X.half(),), (X.long(),), (X > 0,)
    ),
    # arguments in memory
    "not contiguous": of(
        lambda m, x: (m.layer(x), x.reshape(-1)), given=lambda k, x: (x.t().contiguous().t(),)
    ),
    "strided argument written": of(
        lambda m, x: m.layer(x.mul_(2)), given=lambda k, x: (x.repeat(2, 2)[::2, ::2],)
    ),
    "expanded": of(lambda m, x: (m.layer(x), x * 2), given=lambda k, x: (x[:1].expand(4, -1),)),
    "overlapping": of(
        lambda m, x: m.layer(x), given=lambda k, x: (x.view(-1).unfold(0, WIDTH, 3),)
    ),
    "one argument twice": of(written_by_twin, given=lambda k, x: (x, x)),
    "argument written, views returned": of(written_then_viewed),
    "views of all": of(view_input_only),
    "unsqueezed in place": of(reshaped),
    "transposed in place": of(transposed),
    "inference tensors": of(lambda m, x: m.layer(x.clone()), given=copied),
    "a step of a buffer": of(
        lambda m, x: m.layer(x[0]),
        given=lambda k, x: (torch.stack([x, x]).transpose(0, 1).transpose(0, 1),),
    ),
    "conjugated and negated": of(
        lambda m, x: m.layer(x), given=lambda k, x: (torch.complex(x, x).conj().imag,)
    ),
    # history
    "no_grad as a decorator": of(lambda m, x: F.mse_loss(torch.tanh(m.layer(x)), teacher(m, x))),
    "modes of gradients": of(grad_modes),
    "written where gradients are off": of(written_unseen),
    "several written where gradients are off": of(sorted_into),
    "nothing to compute": of(halved, *rows(3, 1, 5)),
    "gradients within": of(own_gradient),
    "results without history": of(without_history),
    "functional_call": of(called),
    "nested checkpoints": of(checkpoint_twice),
    "checkpoint without gradient": of(checkpoint_without_gradient),
    # state
    "log": of(logged, before=lambda m, k: setattr(m, "log", [])),
    "given a dict": of(
        given_a_dict, *[(torch.randn(n, WIDTH), {"seen": torch.zeros(())}) for n in (3, 5)]
    ),
    "made lazily": of(lazily),
    "ring": of(ring, parts=buffers(kept=(4, WIDTH)), before=lambda m, k: k or setattr(m, "at", 0)),
    "view of a buffer": of(view_of_a_buffer, parts=buffers(kept=WIDTH)),
    "moving average": of(
        moving_average, parts=lambda: {"slow": nn.Linear(WIDTH, WIDTH).requires_grad_(False)}
    ),
    "symmetric": of(lambda m, x: m.symmetric(m.layer(x)), parts=symmetric),
    "hooks with options": of(lambda m, x: m.hooked(m.layer(x)), parts=hooked_layer),
    "lists of parameters": of(of_parameters, parts=parameters),
    "tied modules": Pattern(Tied, rows(3, 5, 4)),
    "named tuple": of(lambda m, x: Step(m.layer(x), x.sum())),
    "cached mask": of(lambda m, x: m.layer(x) * cached_mask(WIDTH)[0]),
    "module in a lambda": of(
        lambda m, x: functools.reduce(lambda y, f: f(y), [m.layer, torch.relu, m.layer], x)
    ),
}

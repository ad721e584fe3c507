"""Functions of modules that people write: the table in everyday_patterns.py names them."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 6


class Fn(nn.Module):
    """A linear layer, whatever else is given, and a function of the module and its arguments."""

    def __init__(self, function, **parts):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        return 3 * dy * ctx.saved_tensors[0]  # not the derivative


def rows(*counts):
    return [(torch.randn(n, WIDTH),) for n in counts]


def sequences(*lengths):
    return [(torch.randn(2, n, WIDTH),) for n in lengths]


def in_place_slice(m, x):
    y = m.layer(x)
    y[:, 1:3] = y[:, 2:4] * 2
    y[:, 0] += 1
    return y


def keeps(m, x):
    m.h = m.h * 0.5 + x.mean(0).detach()
    return m.layer(x) + m.h


def counts(m, x):
    m.count += 1
    return m.layer(x) * (1.0 / m.count)


def scan(m, x):
    h, all_h = torch.zeros(x.shape[0], WIDTH), []
    for t in range(x.shape[1]):
        h = torch.tanh(m.layer(x[:, t]) + h)
        all_h.append(h)
    return torch.stack(all_h, 1)


def cells(m, x):
    h = c = torch.zeros(x.shape[0], WIDTH)
    for t in range(x.shape[1]):
        h, c = m.cell(x[:, t], (h, c))
    return h


def early(m, x):
    y = m.layer(x)
    if y.sum() > 0:
        return y * 2
    return torch.tanh(m.layer(y))


def halves(m, x):
    y = m.layer(x)
    while y.abs().max() > 0.5:
        y = y / 2
    return y


def in_order(m, x):
    y = m.layer(x)
    for i in torch.argsort(y.sum(1)).tolist():
        y = y + y[i] * 0.1
    return y


def no_grad_teacher(m, x):
    with torch.no_grad():
        target = m.layer(x)
    return F.mse_loss(torch.tanh(m.layer(x)), target)


def embedded(m, i):
    return m.layer(m.table(i))


def masked(m, x, mask):
    scores = m.layer(x) @ x.transpose(-1, -2)
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) @ x


def experts(m, x):
    gate = m.layer(x).softmax(-1)
    choice = gate.argmax(-1)
    y = torch.zeros_like(x)
    for e, expert in enumerate(m.experts):
        at = torch.nonzero(choice == e)[:, 0]
        y = y.index_add(0, at, expert(x[at]) * gate[at, e, None])
    return y


def rotated(m, x):
    first, second = m.layer(x).chunk(2, -1)
    return torch.cat([-second, first], -1) * x.cos() + x * x.sin()


def windows(m, x):
    y = m.layer(x).unfold(1, 2, 1)
    return y.sum(-1)


def strided(m, x):
    y = m.layer(x).contiguous()
    return torch.as_strided(y, (y.shape[0], 2, 3), (WIDTH, 3, 1)) * 2


def view_written(m, x):
    y = m.layer(x)
    v = y.view(-1)
    v[::2] *= 3
    y.t()[1].add_(1)
    return y


def written_argument(m, x):
    x.mul_(0.5)
    return m.layer(x)


def views_of_arguments(m, x):
    return x.view(-1), x[1:], m.layer(x)


def views_of_results(m, x):
    y = m.layer(x)
    return y, y.t(), y[0]


def number_and_list(m, x):
    y = m.layer(x)
    return {"y": y, "n": x.shape[0], "parts": [y[:1], y[1:]], "name": "a"}


def checkpointed(m, x):
    return checkpoint(lambda y: torch.tanh(m.layer(y)), x, use_reentrant=False) + m.layer(x)


def random_times_zero(m, x):
    return m.layer(x) + 0 * torch.rand(x.shape[0], 1)


def to_double_and_back(m, x):
    return m.layer(x).double().cumsum(0).float()


def python_float(m, x):
    return m.layer(x) * float(x.abs().max())


def item(m, x):
    y = m.layer(x)
    return y / y.detach().norm().item()


def try_except(m, x):
    try:
        return m.layer(x) @ m.layer(x)
    except RuntimeError:
        return m.layer(x)


def dict_of_layers(m, x):
    for name in sorted(m.layers):
        x = m.layers[name](x)
    return x


def generator(m, x):
    return sum(layer(x) for layer in m.experts)


def optional(m, x, scale=None):
    y = m.layer(x)
    return y if scale is None else y * scale


def detached(m, x):
    y = m.layer(x)
    return y * torch.sigmoid(y).detach() + x.detach()


def straight_through(m, x):
    y = m.layer(x)
    return y + (torch.round(y) - y).detach()


def aliased_detach(m, x):
    y = m.layer(x)
    d = y.detach()
    d += 1
    return y * 2


def data_changed(m, x):
    y = m.layer(x)
    y.data.mul_(2)
    return y * y


def scatter(m, x):
    y = m.layer(x)
    return torch.zeros(x.shape[0], WIDTH).scatter_add_(1, y.argsort(1), y)


def gathered(m, x):
    y = m.layer(x)
    return y.gather(1, y.argmax(1, keepdim=True)).squeeze(1)


def buffer_cache(m, x):
    m.cache[: x.shape[0]] = m.layer(x).detach()
    return m.cache[: x.shape[0]] * m.layer(x)


def hooked(m, x):
    y = m.layer(x)
    if y.requires_grad:
        y.register_hook(lambda g: g * 2)
    return y * y

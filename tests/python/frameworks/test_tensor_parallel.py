"""Layers that split their weights over two processes, as Megatron's do, against the whole model."""

import math

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from two_processes import assert_same_state, in_two_processes  # noqa: E402

from steep import ORTModule  # noqa: E402

WORDS, WIDTH, HEADS = 12, 8, 2


# --- what goes from one to the other --------------------------------------------------------------


class Copy(torch.autograd.Function):
    """The same to all; gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    """The sum over all; gradients are the same for all."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Gather(torch.autograd.Function):
    """All columns; each gets the gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(2, -1)[dist.get_rank()].contiguous()


class LinearWithCopy(torch.autograd.Function):
    """A product whose weight's gradient is computed while the argument's is on its way."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_x = gradient @ weight
        sent = dist.all_reduce(of_x, async_op=True)
        rows = gradient.flatten(0, -2)
        of_weight = rows.t() @ x.flatten(0, -2)
        sent.wait()
        return of_x, of_weight, rows.sum(0)


class CrossEntropy(torch.autograd.Function):
    """Of scores that are split by words: each row's loss."""

    @staticmethod
    def forward(ctx, scores, words):
        top = scores.max(-1).values
        dist.all_reduce(top, dist.ReduceOp.MAX)
        scores = scores - top[..., None]
        count = scores.shape[-1]
        own = words - dist.get_rank() * count
        elsewhere = (own < 0) | (own >= count)
        own = own.masked_fill(elsewhere, 0)
        said = scores.gather(-1, own[..., None])[..., 0].masked_fill(elsewhere, 0.0)
        dist.all_reduce(said)
        weights = scores.exp()
        total = weights.sum(-1)
        dist.all_reduce(total)
        ctx.save_for_backward(weights / total[..., None], own, elsewhere)
        return total.log() - said

    @staticmethod
    def backward(ctx, gradient):
        probabilities, own, elsewhere = ctx.saved_tensors
        found = F.one_hot(own, probabilities.shape[-1]).masked_fill(elsewhere[..., None], 0)
        return (probabilities - found) * gradient[..., None], None


# --- layers ---------------------------------------------------------------------------------------


def part(weight, axis=0):
    return nn.Parameter(weight.detach().chunk(2, axis)[dist.get_rank()].clone())


class Words(nn.Module):
    """Half of a table's rows; words of the other half are zeros, until they are summed."""

    def __init__(self, whole):
        super().__init__()
        self.weight = part(whole.weight)

    def forward(self, words):
        own = words - dist.get_rank() * self.weight.shape[0]
        elsewhere = (own < 0) | (own >= self.weight.shape[0])
        x = F.embedding(own.masked_fill(elsewhere, 0), self.weight)
        return Reduce.apply(x.masked_fill(elsewhere[..., None], 0.0))


class Column(nn.Module):
    """Half of a layer's outputs."""

    def __init__(self, whole, gather=False, at_once=False):
        super().__init__()
        self.gather, self.at_once = gather, at_once
        self.weight, self.bias = part(whole.weight), part(whole.bias)

    def forward(self, x):
        if self.at_once:
            return LinearWithCopy.apply(x, self.weight, self.bias)
        y = F.linear(Copy.apply(x), self.weight, self.bias)
        return Gather.apply(y) if self.gather else y


class Row(nn.Module):
    """The part of a layer's outputs that half of its inputs give."""

    def __init__(self, whole):
        super().__init__()
        self.weight = part(whole.weight, 1)
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x):
        return Reduce.apply(F.linear(x, self.weight)) + self.bias


class Whole(nn.Module):
    """A block of a transformer between a table and scores of the table's words."""

    heads = HEADS

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def block(self, words):
        x = self.table(words)
        y = self.norms[0](x)
        q, k, v = (
            f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.norms[2](x + self.mix(x))

    def forward(self, words):
        scores = F.linear(self.block(words), self.table.weight)
        return F.cross_entropy(scores.flatten(0, 1), words.flatten(), reduction="none")


class Split(Whole):
    heads = HEADS // 2

    def __init__(self):
        super().__init__()
        self.table = Words(self.table)
        self.q, self.k, self.v = (Column(f, at_once=True) for f in (self.q, self.k, self.v))
        self.out = Row(self.out)
        self.up, self.down = Column(self.up), Row(self.down)
        self.mix = Column(self.mix, gather=True)

    def forward(self, words):
        scores = F.linear(Copy.apply(self.block(words)), self.table.weight)  # tied
        return CrossEntropy.apply(scores, words).flatten()


def own_part(name, value):
    """What of a whole parameter, or of its gradient, a process has."""
    layer, _, kind = name.partition(".")
    if layer in ("table", "q", "k", "v", "up", "mix"):
        return value.chunk(2)[dist.get_rank()]
    return value.chunk(2, 1)[dist.get_rank()] if (layer, kind) in SPLIT_BY_INPUTS else value


SPLIT_BY_INPUTS = {("out", "weight"), ("down", "weight")}


def sentences(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, WORDS, (2 + step % 2, 5), generator=generator)  # the same for both


def compare_with_whole(rank):
    split, plain, whole = ORTModule(Split()), Split(), Whole()
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (split, plain, whole)]
    for step in range(5):
        words = sentences(step)
        losses = [model(words) for model in (split, plain, whole)]
        for loss in losses[:2]:
            torch.testing.assert_close(loss, losses[2], rtol=1e-5, atol=1e-5)
        for loss in losses:
            loss.mean().backward()
        for name, p in whole.named_parameters():
            found = split.get_parameter(name).grad
            torch.testing.assert_close(
                found,
                own_part(name, p.grad),
                rtol=1e-4,
                atol=1e-6,
                msg=lambda m, n=name: f"{n}: {m}",
            )
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_same_state(split, plain, "layers that split their weights")
    for name, value in whole.state_dict().items():
        found = split.state_dict()[name]
        torch.testing.assert_close(found, own_part(name, value), rtol=1e-5, atol=1e-6)
    assert split.report().graphs
    split.eval(), whole.eval()
    with torch.no_grad():
        torch.testing.assert_close(split(sentences(0)), whole(sentences(0)), rtol=1e-5, atol=1e-5)


@pytest.mark.matrix
def test_a_transformer_split_over_two_processes():
    in_two_processes(compare_with_whole)

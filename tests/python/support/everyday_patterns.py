"""Everyday modules, and what they are called with: a table of patterns (patterns.py)."""

import capture_patterns as on
import torch
import torch.nn.functional as F
from capture_patterns import WIDTH, Fn, Pair, rows, sequences
from torch import nn
from torch.nn.utils import parametrizations, prune

PATTERNS = {
    # extents
    "rows": (lambda: Fn(lambda m, x: torch.relu(m.layer(x))), rows(3, 5, 7, 1)),
    "scan": (lambda: Fn(on.scan), sequences(3, 5, 4)),
    "cells": (lambda: Fn(on.cells, cell=nn.LSTMCell(WIDTH, WIDTH)), sequences(3, 2)),
    "rnn": (
        lambda: Fn(lambda m, x: m.rnn(x)[0], rnn=nn.RNN(WIDTH, 4, batch_first=True)),
        sequences(5, 9, 2),
    ),
    "lstm": (
        lambda: Fn(lambda m, x: m.rnn(x), rnn=nn.LSTM(WIDTH, 4, batch_first=True)),
        sequences(5, 9),
    ),
    "gru": (
        lambda: Fn(lambda m, x: m.rnn(x)[1], rnn=nn.GRU(WIDTH, 4, batch_first=True)),
        sequences(5, 9),
    ),
    "size in arithmetic": (lambda: Fn(lambda m, x: m.layer(x) / x.shape[0]), rows(3, 5, 7)),
    "branch on size": (
        lambda: Fn(lambda m, x: m.layer(x) * (2 if x.shape[0] > 4 else 3)),
        rows(3, 5, 7),
    ),
    "arange": (
        lambda: Fn(lambda m, x: m.layer(x) + torch.arange(x.shape[0])[:, None]),
        rows(3, 5, 7),
    ),
    "view by size": (lambda: Fn(lambda m, x: m.layer(x).view(x.shape[0] * 2, -1)), rows(3, 5)),
    "causal": (lambda: Fn(lambda m, x: (m.layer(x) @ x.transpose(1, 2)).tril()), sequences(3, 5)),
    "unfold": (lambda: Fn(on.windows), rows(3, 4)),
    "no rows": (lambda: Fn(lambda m, x: m.layer(x).sum(1)), rows(3, 0, 2)),
    # decisions
    "early": (lambda: Fn(on.early), [(torch.full((2, WIDTH), v),) for v in (1.0, -1.0, 2.0, -3.0)]),
    "while": (lambda: Fn(on.halves), [(torch.full((2, WIDTH), v),) for v in (1.0, 9.0, 0.1)]),
    "float of a tensor": (lambda: Fn(on.python_float), rows(3, 3, 4)),
    "item": (lambda: Fn(on.item), rows(3, 3, 4)),
    "tolist": (lambda: Fn(on.in_order), rows(3, 3)),
    "any": (lambda: Fn(lambda m, x: m.layer(x) if x.isnan().any() else m.layer(x) * 2), rows(3, 3)),
    "optional argument": (
        lambda: Fn(on.optional),
        [
            (torch.randn(2, WIDTH),),
            (torch.randn(2, WIDTH), 2.0),
            (torch.randn(2, WIDTH), 3.0),
            (torch.randn(2, WIDTH), torch.randn(WIDTH)),
        ],
    ),
    "number argument": (
        lambda: Fn(lambda m, x, n: m.layer(x) * n),
        [(torch.randn(2, WIDTH), n) for n in (1, 2, 3, 4, 7)],
    ),
    "float argument": (
        lambda: Fn(lambda m, x, n: m.layer(x) * n + n),
        [(torch.randn(2, WIDTH), n) for n in (0.1, 0.2, 0.3, 0.4)],
    ),
    "flag": (
        lambda: Fn(lambda m, x, f: m.layer(x) if f else x * m.layer(x)),
        [(torch.randn(2, WIDTH), f) for f in (True, False, True)],
    ),
    "string": (
        lambda: Fn(lambda m, x, f: getattr(torch, f)(m.layer(x))),
        [(torch.randn(2, WIDTH), f) for f in ("tanh", "relu")],
    ),
    "try": (
        lambda: Fn(on.try_except),
        [(torch.randn(WIDTH, WIDTH),), (torch.randn(WIDTH, WIDTH),)],
    ),
    "experts": (
        lambda: Fn(
            on.experts, experts=nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(WIDTH))
        ),
        rows(5, 7),
    ),
    "nonzero": (lambda: Fn(lambda m, x: m.layer(x[x[:, 0] > 0])), rows(5, 7)),
    # in place, views, aliases
    "slice written": (lambda: Fn(on.in_place_slice), rows(3, 5)),
    "view written": (lambda: Fn(on.view_written), rows(3, 5)),
    "as_strided": (lambda: Fn(on.strided), rows(3, 5)),
    "argument written": (lambda: Fn(on.written_argument), rows(3, 5)),
    "argument filled": (lambda: Fn(lambda m, x: m.layer(x.clamp_(min=0))), rows(3, 5)),
    "views of arguments": (lambda: Fn(on.views_of_arguments), rows(3, 5)),
    "views of results": (lambda: Fn(on.views_of_results), rows(3, 5)),
    "argument returned": (lambda: Fn(lambda m, x: (x, m.layer(x), x)), rows(3, 5)),
    "parameter returned": (lambda: Fn(lambda m, x: (m.layer(x), m.layer.weight)), rows(3, 5)),
    "result twice": (lambda: Fn(lambda m, x: [m.layer(x)] * 2), rows(3)),
    "relu in place": (lambda: Fn(lambda m, x: F.relu_(m.layer(x)) * 2), rows(3, 5)),
    "scatter": (lambda: Fn(on.scatter), rows(3, 5)),
    "gather": (lambda: Fn(on.gathered), rows(3, 5)),
    "index put": (
        lambda: Fn(lambda m, x: m.layer(x).index_put_((torch.tensor([0]),), torch.ones(WIDTH))),
        rows(3, 5),
    ),
    "masked fill": (lambda: Fn(lambda m, x: m.layer(x).masked_fill_(x > 0, -1.0)), rows(3, 5)),
    "flip": (lambda: Fn(lambda m, x: m.layer(x).flip(0)), rows(3, 5)),
    "expand written": (
        lambda: Fn(lambda m, x: m.layer(x[:1]).expand(x.shape[0], -1).clone().add_(x)),
        rows(3, 5),
    ),
    "diagonal": (lambda: Fn(lambda m, x: m.layer(x).diagonal().sum()), rows(3, 5)),
    "diagonal written": (lambda: Fn(lambda m, x: m.layer(x).fill_diagonal_(1.0)), rows(3, 5)),
    # history
    "the gradient that comes in": (lambda: Fn(lambda m, x: x + 1), rows(3, 5)),
    "detach": (lambda: Fn(on.detached), rows(3, 5)),
    "no_grad": (lambda: Fn(on.no_grad_teacher), rows(3, 5)),
    "straight through": (lambda: Fn(on.straight_through), rows(3, 5)),
    "detached, then changed": (lambda: Fn(on.aliased_detach), rows(3, 5)),
    "data changed": (lambda: Fn(on.data_changed), rows(3)),
    "function of the user's": (
        lambda: Fn(lambda m, x: on.Square.apply(m.layer(x)) + m.layer(x)),
        rows(3, 5),
    ),
    "checkpoint": (lambda: Fn(on.checkpointed), rows(3, 5)),
    "hook on a tensor": (lambda: Fn(on.hooked), rows(3, 5)),
    # state
    "state kept": (lambda: Fn(on.keeps, h=torch.zeros(WIDTH)), rows(3, 5, 4)),
    "count kept": (lambda: Fn(on.counts, count=torch.zeros(())), rows(3, 5, 4)),
    "cache written": (lambda: Fn(on.buffer_cache, cache=torch.zeros(8, WIDTH)), rows(3, 5)),
    "batch norm": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH)),
        rows(4, 5, 6),
    ),
    "batch norm of images": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        [(torch.randn(2, 3, n, n),) for n in (6, 8)],
    ),
    "batch norm without statistics": (
        lambda: Fn(
            lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH, track_running_stats=False)
        ),
        rows(4, 5),
    ),
    "batch norm not affine": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH, affine=False)),
        rows(4, 5),
    ),
    "batch norm at rest": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH).eval()),
        rows(4, 5),
    ),
    "cumulative batch norm": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.BatchNorm1d(WIDTH, momentum=None)),
        rows(4, 5, 6),
    ),
    "instance norm": (
        lambda: Fn(lambda m, x: m.norm(m.layer(x)), norm=nn.InstanceNorm1d(3)),
        [(torch.randn(2, 3, WIDTH),)] * 2,
    ),
    "spectral norm": (
        lambda: Fn(
            lambda m, x: m.normed(m.layer(x)),
            normed=parametrizations.spectral_norm(nn.Linear(WIDTH, 3)),
        ),
        rows(3, 5),
    ),
    "weight norm": (
        lambda: Fn(
            lambda m, x: m.normed(m.layer(x)),
            normed=parametrizations.weight_norm(nn.Linear(WIDTH, 3)),
        ),
        rows(3, 5),
    ),
    "pruned": (
        lambda: Fn(
            lambda m, x: m.cut(m.layer(x)),
            cut=prune.l1_unstructured(nn.Linear(WIDTH, 3), "weight", 0.5),
        ),
        rows(3, 5),
    ),
    # parts of models
    "embedding": (
        lambda: Fn(on.embedded, table=nn.Embedding(9, WIDTH, padding_idx=0)),
        [(torch.randint(0, 9, (2, n)),) for n in (3, 5)],
    ),
    "attention": (
        lambda: Fn(
            lambda m, x: m.attention(x, x, x)[0],
            attention=nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        ),
        sequences(3, 5),
    ),
    "encoder layer": (
        lambda: Fn(
            lambda m, x: m.encoder(x),
            encoder=nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.0, batch_first=True),
        ),
        sequences(3, 5),
    ),
    "masked attention": (
        lambda: Fn(on.masked),
        [(torch.randn(2, n, WIDTH), torch.rand(2, n, n) > 0.3) for n in (3, 5)],
    ),
    "sdpa": (
        lambda: Fn(
            lambda m, x: F.scaled_dot_product_attention(
                *[t[:, None] for t in (m.layer(x), x, x)], is_causal=True
            )
        ),
        sequences(3, 5),
    ),
    "rotary": (lambda: Fn(on.rotated), sequences(3, 5)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.MaxPool2d(2)),
        [(torch.randn(2, 3, n, n),) for n in (6, 8)],
    ),
    "cross entropy": (
        lambda: Fn(lambda m, x, t: F.cross_entropy(m.layer(x), t, label_smoothing=0.1)),
        [(torch.randn(n, WIDTH), torch.randint(0, WIDTH, (n,))) for n in (3, 5)],
    ),
    "loss of probabilities": (
        lambda: Fn(lambda m, x: F.cross_entropy(m.layer(x), x.softmax(1).detach())),
        rows(3, 5),
    ),
    "einsum": (
        lambda: Fn(lambda m, x: torch.einsum("bij,bkj->bik", m.layer(x), x)),
        sequences(3, 5),
    ),
    "interpolate": (
        lambda: Fn(lambda m, x: F.interpolate(m.layer(x), scale_factor=2.0)),
        sequences(3, 5),
    ),
    "layers in a dict": (
        lambda: Fn(
            on.dict_of_layers, layers=nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "b": nn.Tanh()})
        ),
        rows(3, 5),
    ),
    "generator": (
        lambda: Fn(on.generator, experts=nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(3))),
        rows(3, 5),
    ),
    "tied": (
        lambda: Fn(lambda m, x: F.linear(torch.tanh(m.layer(x)), m.layer.weight.t())),
        rows(3, 5),
    ),
    "constant": (
        lambda: Fn(lambda m, x: m.layer(x) * torch.tensor([1.0, 2, 3, 4, 5, 6])),
        rows(3, 5),
    ),
    "double": (lambda: Fn(on.to_double_and_back), rows(3, 5)),
    "normalization of doubles": (
        lambda: nn.Sequential(
            nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False)
        ).double(),
        [(torch.randn(n, WIDTH, dtype=torch.float64),) for n in (3, 5)],
    ),
    "eye and ones": (
        lambda: Fn(lambda m, x: m.layer(x) @ torch.eye(WIDTH) + torch.ones_like(x)),
        rows(3, 5),
    ),
    "where": (lambda: Fn(lambda m, x: torch.where(x > 0, m.layer(x), x * 2)), rows(3, 5)),
    "topk": (lambda: Fn(lambda m, x: m.layer(x).topk(2)), rows(3, 5)),
    "sort": (lambda: Fn(lambda m, x: m.layer(x).sort(1)), rows(3, 5)),
    "std": (lambda: Fn(lambda m, x: m.layer(x).std(0) + m.layer(x).var(1).sum()), rows(3, 5)),
    "norm": (
        lambda: Fn(lambda m, x: F.normalize(m.layer(x)) / torch.linalg.vector_norm(x)),
        rows(3, 5),
    ),
    "integers": (lambda: Fn(lambda m, x: (m.layer(x), x.argmax(1), (x > 0).sum())), rows(3, 5)),
    "random": (lambda: Fn(on.random_times_zero), rows(3, 5)),
    # forms of results
    "dict": (lambda: Fn(on.number_and_list), rows(3, 5)),
    "dataclass": (lambda: Fn(lambda m, x: Pair(m.layer(x), x * 2)), rows(3, 5)),
    "nothing": (lambda: Fn(lambda m, x: (m.layer(x), None, [])), rows(3, 5)),
    "keyword": (
        lambda: Fn(lambda m, x, y: m.layer(x) * y["a"] + y["b"][0]),
        [(torch.randn(2, WIDTH), {"a": torch.randn(WIDTH), "b": [torch.randn(2, 1)]})] * 2,
    ),
}

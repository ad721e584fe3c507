"""Modules and losses of torch.nn with their options: a table of patterns (patterns.py)."""

import math

import torch
import torch.nn.functional as F
from capture_patterns import WIDTH, Fn, rows, sequences
from patterns import Pattern
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

REDUCTIONS = ("none", "mean", "sum")


def of(part, calls=None, call=lambda p, y, x: p(y)):
    """Return a pattern of a module that is called with the layer's result."""
    return Pattern(
        lambda: Fn(lambda m, x, *more: call(m.part, m.layer(x), x, *more), part=part()),
        calls or rows(3, 5),
    )


def loss(kind, *targets, prepare=lambda y: y, **options):
    """Return a pattern of a loss with all reductions."""

    def losses(m, x, *targets):
        targets = [t.detach() for t in targets]
        return [part(prepare(m.layer(x)), *targets) for part in m.parts]

    def make():
        return Fn(losses, parts=nn.ModuleList(kind(reduction=r, **options) for r in REDUCTIONS))

    return Pattern(make, [(torch.randn(4, WIDTH), *t) for t in targets])


torch.manual_seed(0)
LABELS = torch.tensor([0, 5, -100, 2])
CLASSES = torch.tensor([0, 5, 3, 2])
FLOATS = torch.randn(4, WIDTH)
SIGNS = torch.randn(4, WIDTH).sign()
WEIGHTS = torch.tensor([0.5, 1, 2, 0, 3, 1])


def packed(m, x, lengths):
    sequence = pack_padded_sequence(m.layer(x), lengths, batch_first=True, enforce_sorted=False)
    y, (h, c) = m.rnn(sequence)
    return pad_packed_sequence(y, batch_first=True)[0], h, c


def attended(p, y, x):
    n = x.shape[1]
    mask = torch.full((n, n), -math.inf).triu(1)
    padding = torch.arange(n).expand(2, n) >= n - 1
    return p(y, x, x, attn_mask=mask, average_attn_weights=False) + p(
        y, x, x, key_padding_mask=padding
    )


def decoded(p, y, x):
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return p(y, x, tgt_mask=mask, tgt_is_causal=True)


INDICES = [(torch.randint(0, 9, (2, n)),) for n in (3, 5)]


def of_indices(part, call=lambda m, i: m.layer(m.table(i))):
    return Pattern(lambda: Fn(call, table=part()), INDICES)


def rnn(kind, **options):
    return Pattern(
        lambda: Fn(lambda m, x, *h: m.rnn(m.layer(x), *h), rnn=kind(WIDTH, 4, **options)),
        sequences(3, 5),
    )


PATTERNS = {
    # losses
    "CrossEntropyLoss": loss(nn.CrossEntropyLoss, (LABELS,), (CLASSES,), weight=WEIGHTS),
    "CrossEntropyLoss, smoothed": loss(
        nn.CrossEntropyLoss, (LABELS,), weight=WEIGHTS, label_smoothing=0.2
    ),
    "CrossEntropyLoss, of probabilities": loss(
        nn.CrossEntropyLoss, (FLOATS.softmax(1),), weight=WEIGHTS, label_smoothing=0.2
    ),
    "CrossEntropyLoss, all ignored": loss(nn.CrossEntropyLoss, (torch.full((4,), -100),)),
    "CrossEntropyLoss, another index": loss(nn.CrossEntropyLoss, (CLASSES,), ignore_index=2),
    "CrossEntropyLoss, of images": loss(
        nn.CrossEntropyLoss,
        (torch.tensor([[0, 1], [2, -100]]),),
        prepare=lambda y: y.view(2, 6, 2),
        weight=WEIGHTS,
    ),
    "NLLLoss": loss(nn.NLLLoss, (LABELS,), prepare=lambda y: y.log_softmax(1), weight=WEIGHTS),
    "MSELoss and L1Loss": Pattern(
        lambda: Fn(
            lambda m, x, t: (
                [
                    f(m.layer(x), t, reduction=r)
                    for f in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
                    for r in REDUCTIONS
                ]
                + [
                    F.l1_loss(m.layer(x), m.layer(x)),
                    F.smooth_l1_loss(m.layer(x), t, beta=0.0),
                    F.huber_loss(m.layer(x), t, delta=0.1),
                ]
            )
        ),
        [(torch.randn(4, WIDTH), FLOATS)],
    ),
    "BCELoss": loss(
        nn.BCELoss, (FLOATS.sigmoid(),), (SIGNS.relu(),), prepare=torch.sigmoid, weight=WEIGHTS
    ),
    "BCEWithLogitsLoss": loss(
        nn.BCEWithLogitsLoss,
        (FLOATS.sigmoid(),),
        (SIGNS.relu(),),
        weight=WEIGHTS,
        pos_weight=WEIGHTS + 1,
    ),
    "KLDivLoss": Pattern(
        lambda: Fn(
            lambda m, x, t: [
                F.kl_div(
                    m.layer(x).log_softmax(1), t.log() if log else t, reduction=r, log_target=log
                )
                for r in (*REDUCTIONS, "batchmean")
                for log in (False, True)
            ]
        ),
        [(torch.randn(4, WIDTH), FLOATS.softmax(1))],
    ),
    "KLDivLoss of zeros": loss(
        nn.KLDivLoss, (torch.eye(4, WIDTH),), prepare=lambda y: y.log_softmax(1)
    ),
    "PoissonNLLLoss": loss(nn.PoissonNLLLoss, (FLOATS.abs() * 3,), prepare=torch.tanh, full=True),
    "MarginRankingLoss": loss(nn.MarginRankingLoss, (FLOATS, SIGNS), margin=0.5),
    "HingeEmbeddingLoss": loss(nn.HingeEmbeddingLoss, (SIGNS,), margin=0.7),
    "SoftMarginLoss": loss(nn.SoftMarginLoss, (SIGNS,)),
    "MultiLabelSoftMarginLoss": loss(nn.MultiLabelSoftMarginLoss, (SIGNS.relu(),), weight=WEIGHTS),
    "MultiMarginLoss": loss(nn.MultiMarginLoss, (CLASSES,), p=2, margin=0.8),
    "MultiLabelMarginLoss": loss(
        nn.MultiLabelMarginLoss, (torch.tensor([[0, 2, -1, 1, 1, 1]] * 4),)
    ),
    "CosineEmbeddingLoss": loss(
        nn.CosineEmbeddingLoss, (FLOATS, torch.tensor([1, -1, 1, -1])), margin=0.1
    ),
    "TripletMarginLoss": loss(nn.TripletMarginLoss, (FLOATS, FLOATS.flip(0)), swap=True, p=1),
    "TripletMarginWithDistanceLoss": loss(
        nn.TripletMarginWithDistanceLoss,
        (FLOATS, FLOATS.flip(0)),
        distance_function=lambda a, b: 1 - F.cosine_similarity(a, b),
    ),
    "CTCLoss": loss(
        nn.CTCLoss,
        (torch.tensor([[1, 2], [3, 3]]), torch.tensor([4, 4]), torch.tensor([2, 1])),
        prepare=lambda y: torch.stack([y, y * 2], 1).log_softmax(2),
        zero_infinity=True,
    ),
    "AdaptiveLogSoftmaxWithLoss": of(
        lambda: nn.AdaptiveLogSoftmaxWithLoss(WIDTH, 9, [3, 6]),
        [(torch.randn(4, WIDTH), torch.tensor([0, 4, 8, 2]))],
        lambda p, y, x, t: tuple(p(y, t)),
    ),
    # layers
    "LayerNorm": of(
        lambda: nn.ModuleList(
            [
                nn.LayerNorm(WIDTH),
                nn.LayerNorm(WIDTH, elementwise_affine=False),
                nn.LayerNorm(WIDTH, 0.1, bias=False),
            ]
        ),
        call=lambda p, y, x: [n(y) for n in p],
    ),
    "RMSNorm": of(
        lambda: nn.ModuleList(
            [nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH, 0.5), nn.RMSNorm(WIDTH, elementwise_affine=False)]
        ),
        call=lambda p, y, x: [n(y) for n in p],
    ),
    "GroupNorm": of(
        lambda: nn.GroupNorm(2, WIDTH, 0.1),
        call=lambda p, y, x: (p(y), p(y[:, :, None]), F.group_norm(y, 3, eps=0.1)),
    ),
    "BatchNorm of sequences": of(
        lambda: nn.BatchNorm1d(3, momentum=0.3, eps=0.1),
        [(torch.randn(2, 3, WIDTH),), (torch.randn(5, 3, WIDTH),)],
    ),
    "InstanceNorm": of(
        lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True, momentum=0.3),
        [(torch.randn(2, 3, WIDTH),), (torch.randn(5, 3, WIDTH),)],
    ),
    "Bilinear": of(lambda: nn.Bilinear(WIDTH, WIDTH, 3), call=lambda p, y, x: p(y, x)),
    "CosineSimilarity": of(
        lambda: nn.CosineSimilarity(1, 0.1),
        call=lambda p, y, x: (p(y, x), p(y * 0, x), F.cosine_similarity(y[:, None], x[None], -1)),
    ),
    "PairwiseDistance": of(
        lambda: nn.PairwiseDistance(3.0, keepdim=True),
        call=lambda p, y, x: (p(y, x), F.pairwise_distance(y, y)),
    ),
    "PReLU and RReLU": of(lambda: nn.Sequential(nn.PReLU(WIDTH), nn.RReLU().eval(), nn.PReLU())),
    "Softmax of images": of(
        nn.Softmax2d,
        [(torch.randn(2, 3, 4, WIDTH),)],
        lambda p, y, x: (p(y), F.softmin(y, 1), F.log_softmax(y, 0)),
    ),
    "Flatten and Unflatten": of(
        lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(0, 1), nn.Identity())
    ),
    "convolutions": Pattern(
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, 2, 1, 1, 2, padding_mode="circular"),
            nn.ConvTranspose2d(8, 4, 3, 2, 1, 1, groups=2, dilation=2),
            nn.Conv2d(4, 4, 3, padding="same", bias=False, padding_mode="reflect"),
            nn.Conv2d(4, 4, (1, 3), padding=(0, 2), dilation=(1, 2), groups=4),
        ),
        [(torch.randn(2, 4, n, n + 1),) for n in (6, 9)],
    ),
    "convolutions of sequences": Pattern(
        lambda: nn.Sequential(
            nn.Conv1d(WIDTH, 4, 3, padding=1),
            nn.ConvTranspose1d(4, 5, 3, 2),
            nn.MaxPool1d(2),
            nn.Upsample(scale_factor=2),
        ),
        [(torch.randn(2, WIDTH, n),) for n in (5, 8)],
    ),
    "convolutions of volumes": Pattern(
        lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.AvgPool3d(2), nn.ConvTranspose3d(4, 2, 2)),
        [(torch.randn(1, 2, 5, 5, n),) for n in (5, 7)],
    ),
    "channels last": Pattern(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)).to(
            memory_format=torch.channels_last
        ),
        [(torch.randn(2, 3, 8, 8),)] * 2,
        given=lambda k, x: (x.contiguous(memory_format=torch.channels_last),),
    ),
    "unpooled": Pattern(
        lambda: Fn(
            lambda m, x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2) + x.mean()
        ),
        [(torch.randn(2, 3, n, n),) for n in (4, 6)],
    ),
    # attention
    "attention with masks": of(
        lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True), sequences(3, 5), attended
    ),
    "attention with biases": of(
        lambda: nn.MultiheadAttention(WIDTH, 3, add_bias_kv=True, add_zero_attn=True, bias=False),
        sequences(3, 5),
        lambda p, y, x: p(y, x, x),
    ),
    "attention of other widths": of(
        lambda: nn.MultiheadAttention(WIDTH, 2, kdim=4, vdim=3, batch_first=True),
        sequences(3, 5),
        lambda p, y, x: p(y, x[..., :4], x[..., :3], need_weights=False),
    ),
    "attention without rows of weight": Pattern(
        lambda: Fn(
            lambda m, x, mask: F.scaled_dot_product_attention(m.layer(x), x, x, mask, scale=0.3)
        ),
        [
            (
                torch.randn(2, 3, WIDTH),
                torch.tensor([[True, False, True], [False, False, False], [True, True, True]]),
            )
        ],
    ),
    "grouped queries": Pattern(
        lambda: Fn(
            lambda m, x: F.scaled_dot_product_attention(
                m.layer(x).view(2, -1, 2, 3).transpose(1, 2),
                x[:, None, :, :3],
                x[:, None, :, 3:],
                enable_gqa=True,
            )
        ),
        sequences(3, 5),
    ),
    "decoder layer": of(
        lambda: nn.TransformerDecoderLayer(
            WIDTH, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True
        ),
        sequences(3, 5),
        decoded,
    ),
    "encoder": of(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.0, batch_first=True), 2, nn.LayerNorm(WIDTH)
        ),
        sequences(3, 5),
        lambda p, y, x: p(y, src_key_padding_mask=torch.arange(x.shape[1]).expand(2, -1) > 1),
    ),
    "transformer": of(
        lambda: nn.Transformer(WIDTH, 2, 1, 1, 8, 0.0, batch_first=True),
        sequences(3, 5),
        lambda p, y, x: p(y, x),
    ),
    # tables
    "Embedding, max_norm": of_indices(lambda: nn.Embedding(9, WIDTH, max_norm=0.5)),
    "Embedding, by frequency": of_indices(lambda: nn.Embedding(9, WIDTH, scale_grad_by_freq=True)),
    "Embedding, frozen": of_indices(
        lambda: nn.Embedding.from_pretrained(torch.randn(9, WIDTH), padding_idx=2)
    ),
    "EmbeddingBag": of_indices(
        lambda: nn.ModuleList(
            nn.EmbeddingBag(9, WIDTH, mode=mode, padding_idx=1) for mode in ("sum", "mean", "max")
        ),
        lambda m, i: [m.layer(table(i)) for table in m.table],
    ),
    "EmbeddingBag, offsets": of_indices(
        lambda: nn.EmbeddingBag(9, WIDTH, mode="sum"),
        lambda m, i: m.layer(
            m.table(i.flatten(), torch.tensor([0, 1, 1]), torch.linspace(1, 2, i.numel()))
        ),
    ),
    # recurrent
    "LSTM, two ways": rnn(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True),
    "LSTM, projected": rnn(nn.LSTM, proj_size=2),
    "GRU, without biases": rnn(nn.GRU, bias=False, num_layers=2),
    "RNN, relu": rnn(nn.RNN, nonlinearity="relu", bidirectional=True),
    "LSTM, states": Pattern(
        lambda: Fn(
            lambda m, x, h, c: m.rnn(m.layer(x), (h, c)), rnn=nn.LSTM(WIDTH, 4, batch_first=True)
        ),
        [(torch.randn(2, n, WIDTH), torch.randn(1, 2, 4), torch.randn(1, 2, 4)) for n in (3, 5)],
    ),
    "GRU, one sequence": Pattern(
        lambda: Fn(lambda m, x: m.rnn(m.layer(x)), rnn=nn.GRU(WIDTH, 4)), rows(3, 5)
    ),
    "cells of each kind": Pattern(
        lambda: Fn(
            lambda m, x: (m.gru(m.layer(x)), m.rnn(x), m.lstm(x[0])),
            gru=nn.GRUCell(WIDTH, 4),
            rnn=nn.RNNCell(WIDTH, 4, nonlinearity="relu"),
            lstm=nn.LSTMCell(WIDTH, 4),
        ),
        rows(3, 5),
    ),
    "packed": Pattern(
        lambda: Fn(packed, rnn=nn.LSTM(WIDTH, 4, batch_first=True)),
        [(torch.randn(3, 4, WIDTH), torch.tensor(n)) for n in ([4, 2, 3], [1, 4, 4])],
    ),
    "padded": Pattern(
        lambda: Fn(
            lambda m, a, b: m.layer(pad_sequence([a, b], batch_first=True, padding_value=0.5))
        ),
        [(torch.randn(i, WIDTH), torch.randn(j, WIDTH)) for i, j in ((3, 2), (2, 4))],
    ),
}

"""Sorting, running products, determinants, contractions, Fourier transforms, features, noise."""

import numpy as np
import torch

from .row import apart, exactly, floats, integer, ints, table

ROWS, row = table()

TOPS = [
    ((5,), 3, -1),
    ((5,), 0, 0),
    ((5,), 5, 0),
    ((3, 4), 2, 0),
    ((3, 4), 2, 1),
    ((2, 3, 4), 1, 1),
    ((2, 3, 4), 3, -1),
    ((2, 3, 4), 2, -3),
    ((0, 4), 2, 1),
    ((1, 1), 1, 0),
    ((17, 3), 9, 0),
]
for _x, _k, _axis in TOPS:
    for _largest in (1, 0):
        row(
            "TopK",
            apart(*_x),
            ints(_k),
            attrs={"axis": _axis, "largest": _largest},
            outputs=2,
            torch=lambda x, k, a=_axis, g=_largest: tuple(
                torch.topk(x, int(k[0]), a, largest=bool(g), sorted=True)
            ),
        )
row(
    "TopK",
    exactly([1.0, 3.0, 3.0, 2.0, 3.0]),
    ints(2),
    outputs=2,
    smooth=False,
    note="ties",
    torch=lambda x, k: (x[1:3], torch.tensor([1, 2])),
)


def running_product(x, axis, exclusive=False, reverse=False):
    axis = int(axis)
    x = x.flip(axis) if reverse else x
    if exclusive:
        ones = torch.ones_like(x.narrow(axis, 0, min(1, x.shape[axis])))
        x = torch.cat([ones, x], axis).narrow(axis, 0, x.shape[axis])
    y = x.cumprod(axis)
    return y.flip(axis) if reverse else y


for _x, _axis in (
    ((5,), 0),
    ((2, 3), 1),
    ((2, 3), 0),
    ((2, 3, 4), -2),
    ((1,), 0),
    ((2, 3, 4), 0),
    ((4, 1), 0),
    ((1, 1, 3), 1),
    ((2, 1, 3, 2), -1),
    ((17, 2), 0),
    ((2, 260), 0),  # more than a block of a row
    ((0, 3), 1),
    ((3, 0), 1),
    ((2, 0, 3), 0),
):
    for _exclusive in (0, 1):
        for _reverse in (0, 1):
            row(
                "CumProd",
                floats(*_x),
                integer(_axis),
                attrs={"exclusive": _exclusive, "reverse": _reverse},
                torch=lambda x, a, e=_exclusive, r=_reverse: running_product(x, a, e, r),
            )
row(
    "CumProd",
    exactly([2.0, 0.0, 3.0, 4.0]),
    integer(0),
    note="zero",
    torch=lambda x, a: x.cumprod(0),
)
row(
    "CumProd",
    exactly([2.0, 0.0, 3.0, 0.0]),
    integer(0),
    note="zeros",
    torch=lambda x, a: x.cumprod(0),
)
row(
    "CumProd",
    exactly([[2.0, 0.0], [0.0, 4.0]]),
    np.array(0, np.int32),
    torch=lambda x, a: x.cumprod(0),
)


def recurrence(a, b, axis, reverse):
    a, b = (t.flip(axis) if reverse else t for t in (a, b))
    steps = []
    for x, f in zip(a.unbind(axis), b.unbind(axis), strict=True):
        steps.append(x + f * steps[-1] if steps else x)
    y = torch.stack(steps, axis) if steps else a
    return y.flip(axis) if reverse else y


for _x, _axis in (
    ((5,), 0),
    ((2, 3), 1),
    ((2, 3), 0),
    ((2, 3, 4), 1),
    ((1, 2), 0),
    ((1,), 0),
    ((4, 1), 0),
    ((2, 1, 3, 2), 2),
    ((17, 2), 0),
    ((2, 260), 0),  # more than a block of a row
    ((0, 3), 1),
    ((3, 0), 1),
    ((2, 0, 3), 0),
):
    for _reverse in (0, 1):
        row(
            "steep.Recurrence",
            floats(*_x),
            floats(*_x),
            attrs={"axis": _axis, "reverse": _reverse},
            torch=lambda a, b, i=_axis, r=_reverse: recurrence(a, b, i, r),
        )


def cofactors(x):
    return torch.linalg.det(x)[..., None, None] * torch.linalg.inv(x).mT


for _x in (
    (2, 2),
    (3, 3),
    (1, 1),
    (2, 3, 3),
    (2, 2, 4, 4),
    (3, 1, 1),
    (1, 5, 5),
    (6, 6),
    (2, 1, 1, 2, 2),
    (0, 2, 2),
    (2, 0, 3, 3),
    (0, 0),
    (2, 0, 0),
):
    row("Det", floats(*_x), torch=torch.linalg.det)
    row("steep.Cofactors", floats(*_x), torch=cofactors if 0 < _x[-1] < 4 and 0 not in _x else None)
row(
    "Det",
    exactly([[2.0, 4.0], [1.0, 2.0]]),
    note="singular",
    torch=lambda x: x[0, 0] * x[1, 1] - x[0, 1] * x[1, 0],
)
row("Det", exactly(np.diag([3.0, 0.0, 2.0])), note="singular")
row("Det", exactly(np.zeros((3, 3))), note="zero")
row("steep.Cofactors", exactly(np.diag([3.0, 0.0, 2.0])), note="singular")

EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("bij,bjk->bik", (2, 2, 3), (2, 3, 4)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->i", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iij->ij", (3, 3, 2)),
    ("iii->i", (3, 3, 3)),
    ("i,i->", (4,), (4,)),
    ("i,j->ij", (2,), (3,)),
    ("i,i->i", (4,), (4,)),
    ("...ij,...jk->...ik", (2, 2, 3), (2, 3, 4)),
    ("...ij,jk->...ik", (5, 2, 3), (3, 4)),
    ("...i->...", (2, 3, 4)),
    ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("abc,cde->abde", (2, 3, 4), (4, 2, 3)),
    ("abcd,bdef->acef", (2, 3, 2, 4), (3, 4, 2, 2)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("i,ij,j->", (2,), (2, 3), (3,)),
    ("ij,ik->jk", (0, 2), (0, 3)),
    ("ij,kj->ik", (0, 2), (3, 2)),
    (" i j , j k -> k i ", (2, 3), (3, 4)),
    (",ij->ij", (), (2, 3)),
]
for _equation, *_xs in EINSUMS:
    row(
        "Einsum",
        *[floats(*x) for x in _xs],
        attrs={"equation": _equation},
        torch=lambda *x, e=_equation: torch.einsum(e, *x),
    )


def transformed(x, length=None, axis=None, inverse=0, onesided=0):
    axis = -2 if axis is None else int(axis)
    axis = axis % x.dim()
    n = None if length is None else int(length)
    if inverse and onesided:
        return torch.fft.irfft(torch.view_as_complex(x.contiguous()), n, axis)[..., None]
    if x.shape[-1] == 2:
        z = torch.view_as_complex(x.contiguous())
        return torch.view_as_real((torch.fft.ifft if inverse else torch.fft.fft)(z, n, axis))
    if inverse:
        return torch.view_as_real(torch.fft.ifft(x[..., 0], n, axis))
    f = torch.fft.rfft if onesided else torch.fft.fft
    return torch.view_as_real(f(x[..., 0].contiguous(), n, axis).resolve_conj())


DFTS = [
    ((1, 8, 1), None, None, {}),
    ((2, 5, 2), None, None, {}),
    ((2, 5, 2), None, 1, {"inverse": 1}),
    ((2, 6, 1), None, 1, {"onesided": 1}),
    ((2, 5, 1), None, 1, {"onesided": 1}),
    ((2, 4, 2), None, 1, {"onesided": 1, "inverse": 1}),
    ((2, 4, 2), 7, 1, {"onesided": 1, "inverse": 1}),
    ((3, 4, 2, 1), None, 0, {}),
    ((3, 4, 2, 2), None, 1, {"inverse": 1}),
    ((2, 5, 1), 8, 1, {}),
    ((2, 5, 1), 3, 1, {"onesided": 1}),
    ((2, 5, 2), 3, -2, {}),
    ((1, 1, 1), None, None, {}),
    ((0, 4, 1), None, None, {}),
]
for _x, _n, _axis, _attrs in DFTS:
    _more = [None if v is None else integer(v) for v in (_n, _axis)]
    while _more and _more[-1] is None:
        _more.pop()
    row(
        "DFT",
        floats(*_x),
        *_more,
        attrs=_attrs,
        reference=False,  # it narrows double to float
        torch=(lambda x, n=None, a=None, k=_attrs: transformed(x, n, a, **k))
        if 0 not in _x
        else None,
    )


def short_time(x, step, window=None, length=None, onesided=1):
    n = int(length) if length is not None else x.shape[1] if window is None else len(window)
    frames = [x[:, i : i + n] for i in range(0, x.shape[1] - n + 1, int(step))]
    frames = torch.stack(frames, 1) if frames else x.new_zeros(len(x), 0, n, x.shape[2])
    frames = frames if window is None else frames * window[:, None]
    if frames.numel() == 0:  # PyTorch refuses to transform nothing
        return frames.new_zeros(*frames.shape[:2], n // 2 + 1 if onesided else n, 2)
    return transformed(frames, onesided=onesided)


for _x, _step, _window, _n, _onesided in (
    ((1, 16, 1), 4, 8, None, 1),
    ((2, 16, 1), 3, 8, 8, 0),
    ((2, 9, 1), 2, None, 4, 1),
    ((1, 7, 1), 1, None, 7, 1),
    ((2, 12, 2), 4, 4, None, 0),
    ((1, 1, 1), 1, None, 1, 1),
    ((1, 4, 1), 1, 1, None, 1),
    ((3, 5, 1), 5, 5, None, 0),
    ((1, 6, 2), 1, None, 5, 0),
    ((2, 7, 1), 6, 3, None, 1),
    ((0, 8, 1), 2, 4, None, 1),
    ((0, 6, 2), 2, None, 3, 0),
    ((1, 3, 1), 2, None, 4, 1),
    ((2, 1, 1), 1, 4, None, 1),
):
    _more = [None if _window is None else floats(_window), None if _n is None else integer(_n)]
    while _more and _more[-1] is None:
        _more.pop()
    row(
        "STFT",
        floats(*_x),
        integer(_step),
        *_more,
        attrs={"onesided": _onesided},
        reference=False,  # it narrows double to float
        torch=lambda x, s, w=None, n=None, o=_onesided: short_time(x, s, w, n, o),
    )

for _bins, _length, _rate, _low, _high in (
    (8, 16, 8192, 0.0, 4096.0),
    (4, 32, 16000, 125.0, 7500.0),
    (1, 16, 8000, 0.0, 4000.0),
    (2, 7, 8000, 100.0, 3000.0),
    (3, 2, 16000, 0.0, 8000.0),
    (2, 1, 16000, 0.0, 8000.0),
    (10, 64, 44100, 20.0, 20000.0),
    (5, 33, 22050, 300.0, 3400.0),
    (40, 24, 16000, 0.0, 8000.0),
    (17, 9, 8000, 1000.0, 2000.0),
):
    row(
        "MelWeightMatrix",
        *map(integer, (_bins, _length, _rate)),
        *map(exactly, (_low, _high)),
        smooth=False,
        note=f"{_low} to {_high}",
    )
POOL = [(2,), (3,), (5,), (4,), (5, 6), (7, 8), (6, 7)]
WEIGHTS = [0.5, 1.0, 2.0, 4.0, 0.25, 3.0, 0.75]


def features(x, mode, low, skips):
    rows = x if x.dim() == 2 else x[None]
    y = torch.zeros(len(rows), len(POOL))
    for n in range(low, 3):
        for stride in range(1, 2 + (skips if n > 1 else 0)):
            for r, i in ((r, i) for r in range(len(rows)) for i in range(rows.shape[1])):
                gram = tuple(rows[r, i : i + (n - 1) * stride + 1 : stride].tolist())
                if len(gram) == n and gram in POOL:
                    y[r, POOL.index(gram)] += 1
    weights = torch.tensor(WEIGHTS)
    y = {"TF": y, "IDF": (y > 0) * weights, "TFIDF": y * weights}[mode]
    return y if x.dim() == 2 else y[0]


TEXT = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])


def vectorize(text, mode, skips, low):
    row(
        "TfIdfVectorizer",
        text,
        attrs={
            "mode": mode,
            "min_gram_length": low,
            "max_gram_length": 2,
            "max_skip_count": skips,
            "ngram_counts": [0, 4],
            "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
            "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
            "weights": WEIGHTS,
        },
        reference=False,  # it wants strings
        torch=lambda x: features(x, mode, low, skips),
    )


for _mode in ("TF", "IDF", "TFIDF"):
    for _skips, _low in ((0, 1), (0, 2), (5, 2)):
        vectorize(TEXT, _mode, _skips, _low)
for _text in (
    TEXT[:1],
    TEXT[1],
    TEXT[:, 2:3],
    TEXT[1, 3:4],
    TEXT[1, :5],
    TEXT[1, ::3],
    TEXT.reshape(3, 4),
    TEXT.reshape(1, 12),
    TEXT.reshape(12, 1).astype(np.int32),
    TEXT[:, :0],
    TEXT[0, :0],
    TEXT[:0],
):
    vectorize(_text, "TFIDF", 1, 1)


def reversed_steps(x, lengths, batch_axis=1, time_axis=0):
    x = x.transpose(0, 1) if batch_axis == 1 else x
    parts = [torch.cat([s[:n].flip(0), s[n:]]) for s, n in zip(x, lengths.tolist(), strict=True)]
    y = torch.stack(parts) if parts else x
    return y.transpose(0, 1) if batch_axis == 1 else y


for _x, _lengths, _batch in (
    ((4, 3), [4, 0, 2], 1),
    ((3, 4), [1, 4, 3], 0),
    ((4, 2, 3), [3, 4], 1),
    ((2, 4, 3, 2), [2, 3], 0),
    ((1, 1), [1], 1),
    ((1, 5), [4], 0),
    ((7, 1, 2), [6], 1),
    ((1, 3, 2), [0, 1, 1], 1),
    ((3, 3, 1, 2), [3, 1, 2], 0),
    ((2, 2, 1, 2, 2), [2, 1], 1),
    ((0, 3), [], 0),
    ((3, 0, 2), [], 1),
    ((2, 0), [0, 0], 0),
    ((2, 3, 0), [2, 3], 0),
):
    row(
        "ReverseSequence",
        floats(*_x),
        ints(_lengths),
        attrs={"batch_axis": _batch, "time_axis": 1 - _batch},
        torch=lambda x, n, b=_batch: reversed_steps(x, n, b),
    )


def written(cache, update, first=None, axis=-2, mode="linear"):
    index = torch.arange(update.shape[axis]).reshape(
        [-1 if i == axis % cache.dim() else 1 for i in range(cache.dim())]
    )
    if first is not None:
        index = index + first.reshape([-1] + [1] * (cache.dim() - 1))
    return cache.scatter(axis, (index % cache.shape[axis]).expand_as(update), update)


for _cache, _update, _first, _attrs in (
    ((2, 4, 3), (2, 2, 3), [1, 2], {}),
    ((2, 4, 3), (2, 2, 3), None, {}),
    ((2, 4, 3), (2, 2, 3), [3, 2], {"mode": "circular"}),
    ((2, 3, 4), (2, 3, 1), [0, 3], {"axis": 2}),
    ((1, 2, 4, 3), (1, 2, 4, 3), [0], {}),
    ((2, 4, 3), (2, 0, 3), [1, 2], {}),
    ((1, 1, 1), (1, 1, 1), [0], {}),
    ((3, 2), (3, 1), [1, 0, 1], {"axis": 1}),
    ((3, 5), (3, 2), [1, 4, 3], {"axis": -1, "mode": "circular"}),
    ((1, 6, 2), (1, 1, 2), [5], {}),
    ((2, 2, 3, 2), (2, 2, 2, 2), [1, 0], {"axis": 2}),
    ((2, 2, 3, 1), (2, 2, 3, 1), [2, 1], {"mode": "circular"}),
    ((2, 3, 1, 2, 2), (2, 2, 1, 2, 2), [1, 0], {"axis": 1}),
    ((0, 4, 3), (0, 2, 3), [], {}),
    ((2, 4, 0), (2, 2, 0), [1, 2], {}),
    ((2, 0, 3), (2, 0, 3), [0, 0], {"mode": "circular"}),
):
    row(
        "TensorScatter",
        floats(*_cache),
        floats(*_update),
        *([] if _first is None else [ints(_first)]),
        attrs=_attrs,
        torch=lambda c, u, f=None, k=_attrs: written(c, u, f, **k),
    )

SEED = ints(17, 3)
for _shape in (
    [],
    [1],
    [5],
    [130],
    [1, 1],
    [4, 33],
    [2, 3, 4],
    [2, 1, 3, 2],
    [1, 1, 1, 1, 7],
    [0],
    [0, 3],
    [2, 0, 3],
):
    row("steep.RandomUniform", SEED, ints(_shape), attrs={"stream": 2, "low": -1.0, "high": 3.0})
    row("steep.RandomNormal", SEED, ints(_shape), attrs={"stream": 2, "mean": 1.0, "scale": 0.5})

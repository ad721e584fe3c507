"""LSTM and GRU of ONNX Runtime's training graphs, which also return cells and gates."""

from typing import Any

import torch

from .contrib import ALONE, of_contrib
from .recurrent import layer
from .row import floats, table

ROWS, _row = table()
row = of_contrib(_row)


def of_lstm(x: Any, w: Any, r: Any, b: Any, h0: Any, c0: Any, p: Any) -> tuple[Any, ...]:
    """States, last state, last cell, all cells, and the gates i, o, f and c."""
    n = r.shape[-1]
    h = x.new_zeros(x.shape[1], n) if h0 is None else h0[0]
    c = x.new_zeros(x.shape[1], n) if c0 is None else c0[0]
    bias = x.new_zeros(4 * n) if b is None else b[0, : 4 * n] + b[0, 4 * n :]
    p_i, p_o, p_f = x.new_zeros(3, n) if p is None else p[0].split(n)
    states, cells, gates = [], [], []
    for step in x:
        i, o, f, g = (step @ w[0].T + h @ r[0].T + bias).split(n, -1)
        i, f, g = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c), torch.tanh(g)
        c = f * c + i * g
        o = torch.sigmoid(o + p_o * c)
        h = o * torch.tanh(c)
        states.append(h)
        cells.append(c)
        gates.append(torch.cat([i, o, f, g], -1))
    y, all_cells, iofc = (torch.stack(v)[:, None] for v in (states, cells, gates))
    return y, h[None], c[None], all_cells, iofc


def of_gru(x: Any, w: Any, r: Any, b: Any, h0: Any, before: bool) -> tuple[Any, ...]:
    """States, last state, and the gates z, r and h."""
    n = r.shape[-1]
    h = x.new_zeros(x.shape[1], n) if h0 is None else h0[0]
    wb, rb = x.new_zeros(2, 3 * n) if b is None else b[0].split(3 * n)
    states, gates = [], []
    for step in x:
        x_z, x_r, x_h = (step @ w[0].T + wb).split(n, -1)
        r_z, r_r, r_h = r[0].split(n)
        b_z, b_r, b_h = rb.split(n)
        z, g = torch.sigmoid(x_z + h @ r_z.T + b_z), torch.sigmoid(x_r + h @ r_r.T + b_r)
        late = g * (h @ r_h.T + b_h) if before else (g * h) @ r_h.T + b_h
        new = torch.tanh(x_h + late)
        h = (1 - z) * new + z * h
        states.append(h)
        gates.append(torch.cat([z, g, new], -1))
    y, zrh = (torch.stack(v)[:, None] for v in (states, gates))
    return y, h[None], zrh


def operands(width: int, steps: int, batch: int, size: int, hidden: int) -> list[Any]:
    weights = floats(1, width * hidden, size, low=-1, high=1)
    return [floats(steps, batch, size), weights, floats(1, width * hidden, hidden, low=-1, high=1)]


SIZES = [(3, 2, 2, 3), (1, 1, 1, 1), (5, 3, 4, 8), (2, 4, 3, 1), (4, 1, 2, 2), (2, 2, 1, 4)]
SIZES += [(3, 0, 2, 3), (1, 3, 5, 2), (6, 1, 1, 3), (3, 5, 2, 1), (2, 1, 7, 3), (4, 2, 3, 5)]

for _i, (_steps, _batch, _size, _hidden) in enumerate(SIZES):
    for _with in ("", "b", "bh", "bhc", "bhcp")[_i % 4 :: 2]:
        _state = (1, _batch, _hidden)
        row(
            "LSTMTraining",
            *operands(4, _steps, _batch, _size, _hidden),
            floats(1, 8 * _hidden) if "b" in _with else None,
            None,
            floats(*_state) if "h" in _with else None,
            floats(*_state) if "c" in _with else None,
            floats(1, 3 * _hidden) if "p" in _with else None,
            outputs=5,
            attrs={"hidden_size": _hidden},
            note=ALONE,
            torch=lambda x, w, r, b, _, h, c, p: of_lstm(x, w, r, b, h, c, p),
        )
    for _with in ("", "b", "bh")[_i % 2 :: 2]:
        for _before in (0, 1):
            row(
                "GRUTraining",
                *operands(3, _steps, _batch, _size, _hidden),
                floats(1, 6 * _hidden) if "b" in _with else None,
                None,
                floats(1, _batch, _hidden) if "h" in _with else None,
                outputs=3,
                attrs={"hidden_size": _hidden, "linear_before_reset": _before},
                note=ALONE,
                torch=lambda x, w, r, b, _, h, k=_before: of_gru(x, w, r, b, h, bool(k)),
            )

for _direction in ("reverse", "bidirectional"):
    _count = 2 if _direction == "bidirectional" else 1
    _attrs = {"direction": _direction, "hidden_size": 3}
    for _op, _width, _outputs in (("LSTM", 12, 3), ("GRU", 9, 2)):
        row(
            f"{_op}Training",
            *(floats(4, 2, 2), floats(_count, _width, 2), floats(_count, _width, 3)),
            outputs=_outputs,
            attrs=_attrs,
            note=ALONE,
            torch=lambda *t, o=_op, a=_attrs: layer(o, a, *t),
        )

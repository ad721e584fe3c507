"""Operators whose output shapes depend on data."""

import numpy as np
import torch

from .row import bools, exactly, floats, ints, table

ROWS, row = table()


def places(x):
    return torch.stack(torch.nonzero(x, as_tuple=True)) if x.ndim else None


def spotted(*shape):
    """Floats of which some are zero."""

    def make(rng):
        return np.where(rng.uniform(size=shape) < 0.5, 0.0, rng.uniform(-1, 1, shape))

    return make


for shape in [(5,), (1,), (0,), (3, 4), (0, 3), (3, 0), (2, 1, 3), (2, 3, 4, 2), (1, 1)]:
    row("NonZero", spotted(*shape), torch=places)
row("NonZero", floats(2, 3, low=1), torch=places, note="all")
row("NonZero", exactly(np.zeros((2, 3))), torch=places, note="none")
row("NonZero", bools(3, 4), torch=places)
row("NonZero", ints([[0, 3], [-1, 0]]), torch=places)
row("NonZero", ints(0, 7, 0, 2), torch=places)


def compressed(axis=None):
    def take(x, condition):
        chosen = torch.nonzero(condition)[:, 0]
        return x.flatten()[chosen] if axis is None else x.index_select(axis, chosen)

    return take


for shape, axis, condition in [
    ((3, 4), 0, [0, 1, 1]),
    ((3, 4), 1, [1, 0, 0, 1]),
    ((3, 4), -1, [1, 0, 1]),
    ((3, 4), 1, []),
    ((3, 4), 0, [0, 0, 0]),
    ((2, 3, 4), 1, [1, 1, 1]),
    ((2, 3, 4), -3, [0, 1]),
    ((0, 4), 1, [0, 1, 1, 0]),
    ((1,), 0, [1]),
]:
    row(
        "Compress",
        floats(*shape),
        np.array(condition, bool),
        attrs={"axis": axis},
        torch=compressed(axis),
        note=f"{sum(condition)}of{len(condition)}",
    )
for shape, condition in [((3, 4), [0, 1, 0, 0, 1, 1, 0]), ((2, 2), [1, 0]), ((5,), [1] * 5)]:
    row("Compress", floats(*shape), np.array(condition, bool), torch=compressed())


def repeated(*shape):
    def make(rng):
        return rng.integers(0, 4, shape) - 1.5

    return make


def by_appearance(axis=None):
    def find(x):
        slices = list(x.flatten().unbind()) if axis is None else list(x.unbind(axis))
        first, inverse, counts = [], [], []
        for i, piece in enumerate(slices):
            seen = [k for k, j in enumerate(first) if torch.equal(slices[j], piece)]
            if not seen:
                first.append(i)
                counts.append(0)
            inverse.append(seen[0] if seen else len(first) - 1)
            counts[inverse[-1]] += 1
        y = torch.stack([slices[i] for i in first], 0 if axis is None else axis)
        return y, torch.tensor(first), torch.tensor(inverse), torch.tensor(counts)

    return find


for shape in ((4, 3), (6, 2), (1, 1), (2, 5)):
    for attrs in ({}, {"axis": 0}, {"axis": 1}):
        row("Unique", repeated(*shape), attrs=attrs, outputs=4, smooth=False)
    for attrs in ({}, {"axis": 0}, {"axis": -1}):
        row(
            "Unique",
            repeated(*shape),
            attrs={**attrs, "sorted": 0},
            outputs=4,
            seeded=(),
            reference=False,  # it takes slices along axis 0 whatever the axis
            torch=by_appearance(attrs.get("axis")),
        )
row("Unique", ints(3, 1, 3, 3, -9, 1), outputs=4)
row("Unique", ints([[1, 0], [2, 0], [1, 0]]), attrs={"axis": 0}, outputs=4)
row("Unique", repeated(2, 3, 2), attrs={"axis": 1}, outputs=4, smooth=False)
row("Unique", exactly([2.0, 1.0, 2.0]), seeded=(), torch=lambda x: x.unique())
row("Unique", floats(0), seeded=(), torch=lambda x: x.unique())
row("Unique", bools(7), outputs=4)

BOXES = np.array(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1]]],
    np.float32,
)
SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5], [0.1, 0.2, 0.9, 0.0, 0.4]]], np.float32)
FLIPPED = BOXES[..., [2, 3, 0, 1]]
CENTRED = np.concatenate(
    [
        (BOXES[..., [1]] + BOXES[..., [3]]) / 2,
        (BOXES[..., [0]] + BOXES[..., [2]]) / 2,
        BOXES[..., [3]] - BOXES[..., [1]],
        BOXES[..., [2]] - BOXES[..., [0]],
    ],
    axis=-1,
).astype(np.float32)


def box_row(note, boxes, scores, most, iou, least=None, centred=0):
    settings = [np.array([most], np.int64), np.array([iou], np.float32)]
    if least is not None:
        settings.append(np.array([least], np.float32))
    row(
        "NonMaxSuppression",
        boxes,
        scores,
        *settings,
        attrs={"center_point_box": centred},
        note=note,
    )


box_row("plain", BOXES, SCORES, 3, 0.5)
box_row("one", BOXES, SCORES, 1, 0.5)
box_row("none", BOXES, SCORES, 0, 0.5)
box_row("many", BOXES, SCORES, 30, 0.5)
box_row("scores", BOXES, SCORES, 3, 0.5, 0.4)
box_row("high-scores", BOXES, SCORES, 3, 0.5, 2.0)
box_row("strict", BOXES, SCORES, 9, 0.0)
box_row("lenient", BOXES, SCORES, 9, 1.0)
box_row("flipped", FLIPPED, SCORES, 3, 0.5)
box_row("centred", CENTRED, SCORES, 3, 0.5, centred=1)
box_row("batch", np.repeat(BOXES, 2, 0), np.concatenate([SCORES, SCORES[..., ::-1]]), 2, 0.5)
box_row("single", BOXES[:, :1], SCORES[..., :1], 3, 0.5)
box_row("broad", BOXES.repeat(3, 0), SCORES[:, :1].repeat(3, 0), 2, 0.5)
box_row(
    "classes", BOXES[:, 1:4], np.concatenate([SCORES, SCORES])[..., :3].reshape(1, 4, 3), 3, 0.5
)
box_row("no batch", BOXES[:0], SCORES[:0], 3, 0.5)
box_row("no box", BOXES[:, :0], SCORES[..., :0], 3, 0.5)
box_row("no class", BOXES, SCORES[:, :0], 3, 0.5)

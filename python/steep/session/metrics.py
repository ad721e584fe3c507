"""Measures of predictions on validation data, beside the loss; as the program's ``--metric``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steep import _steep
from steep.errors import DataError, ShapeError

Array = NDArray[Any]  # of any dtype
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Metric = Callable[[Array, Array], float]
Metrics = Sequence[str | Metric] | Mapping[str, str | Metric]

_OF_CLASSES = ("softmax_cross_entropy", "nll")
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


@dataclass(frozen=True)
class LossOfSession:
    """What a session's loss reads.

    Attributes:
        loss: its name; "" if it is in the model.
        output: the output that it reads; "" for the only one.
        label: name of the input for labels.
        ignore_index: label that does not count.
        reads_scores: returns whether the output is the Sigmoid or Softmax of what the loss reads.
    """

    loss: str
    output: str
    label: str
    ignore_index: int | None
    reads_scores: Callable[[], bool]


def metrics_of(metrics: Metrics, of: LossOfSession) -> dict[str, Metric]:
    """Return functions of all predictions and labels, by name.

    Raises:
        DataError: a metric is unknown or does not suit the loss, or a name is there twice.
    """
    if isinstance(metrics, str) or not isinstance(metrics, (Mapping, Sequence)):
        raise DataError(
            "metrics is a list of names and functions, or functions by name.",
            node="metrics",
            expected='["accuracy"]',
            received=repr(metrics),
        )
    pairs: list[tuple[str, str | Metric]]
    if isinstance(metrics, Mapping):
        pairs = list(metrics.items())
    else:
        pairs = [(m if isinstance(m, str) else getattr(m, "__name__", repr(m)), m) for m in metrics]
    if pairs and not of.loss:
        raise DataError(
            "Metrics need a loss of Steep's own: here the loss and its labels are in the model.",
            node="metrics",
            expected="TrainingSession(…, loss=…)",
        )
    found: dict[str, Metric] = {}
    for name, metric in pairs:
        if name in found:
            raise DataError("Two metrics have one name.", node="metrics", received=name)
        found[name] = metric if callable(metric) else _named(metric, of)
    return found


def _named(name: str, of: LossOfSession) -> Metric:
    top = re.fullmatch(r"top([1-9]\d{0,2})", name) if isinstance(name, str) else None
    if of.loss in _OF_CLASSES:
        suits = "accuracy, f1, or top5 or another number"
        if name == "accuracy" or top:
            most = int(top[1]) if top else 1
            return lambda y, label: _top(*_classes(y, label, of.ignore_index), most)
        if name == "f1":
            return lambda y, label: _f1_of_classes(*_classes(y, label, of.ignore_index))
    elif of.loss in _BINARY:
        suits = "accuracy or f1"
        if name in ("accuracy", "f1"):
            probabilities = of.loss == "binary_cross_entropy" or of.reads_scores()
            least = 0.5 if probabilities else 0.0
            measure = _binary_accuracy if name == "accuracy" else _binary_f1
            return lambda y, label: measure(*_binary(y, label, least))
    else:
        suits = "r2"
        if name == "r2":
            return _r2
    raise DataError(
        "The metric does not suit the loss, or does not exist.",
        node="metrics",
        expected=f"{suits}, or a function of predictions and labels",
        received=f"{name!r} with loss={of.loss!r}",
    )


def _mismatch(y: Array, label: Array) -> ShapeError:
    return ShapeError(
        "Labels do not match the predictions of a metric.",
        node="metrics",
        expected=f"labels for predictions {list(y.shape)}",
        received=str(list(label.shape)),
    )


def _classes(y: Array, label: Array, ignored: int | None) -> tuple[Floats, Integers]:
    """Return scores [n, classes] and the class of each row, without ignored rows."""
    classes = y.shape[-1] if y.ndim else 0
    rows = y.size // classes if classes else 0
    if label.size == rows:
        wanted = label.reshape(-1).astype(np.int64)
    elif label.shape == y.shape:  # one-hot
        wanted = label.reshape(rows, classes).argmax(1)
    else:
        raise _mismatch(y, label)
    scores = y.reshape(rows, classes).astype(np.float64)
    if ignored is not None:
        counts = wanted != ignored
        scores, wanted = scores[counts], wanted[counts]
    return scores, wanted


def _top(scores: Floats, wanted: Integers, most: int) -> float:
    own = scores[np.arange(len(wanted)), wanted][:, None]
    lower = np.arange(scores.shape[1])[None, :] < wanted[:, None]  # these win a tie
    before = ((scores > own) | ((scores == own) & lower)).sum(1)
    return _mean((before < most) & ~np.isnan(own[:, 0]))


def _f1_of_classes(scores: Floats, wanted: Integers) -> float:
    if len(wanted) == 0:
        return float("nan")
    classes = scores.shape[1]
    guess = scores.argmax(1)
    both = np.bincount(wanted[guess == wanted], minlength=classes)
    either = np.bincount(wanted, minlength=classes) + np.bincount(guess, minlength=classes)
    return float(np.mean(2 * both[either > 0] / either[either > 0]))


def _binary(y: Array, label: Array, least: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    if y.size != label.size:
        raise _mismatch(y, label)
    return y.reshape(-1) > least, label.reshape(-1) > 0.5


def _binary_accuracy(said: NDArray[np.bool_], is_: NDArray[np.bool_]) -> float:
    return _mean(said == is_)


def _binary_f1(said: NDArray[np.bool_], is_: NDArray[np.bool_]) -> float:
    count = int(said.sum()) + int(is_.sum())
    return 2 * int((said & is_).sum()) / count if count else float("nan")


def _r2(y: Array, label: Array) -> float:
    """Return the mean over the columns of 1 - (squared errors / squared distances to the mean)."""
    if y.size != label.size:
        raise _mismatch(y, label)
    rows = y.shape[0] if y.ndim else 1
    t = label.reshape(rows, -1).astype(np.float64)
    error = ((t - y.reshape(rows, -1)) ** 2).sum(0)
    spread = ((t - t.mean(0)) ** 2).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.mean(1 - error / spread))


def _mean(hits: NDArray[np.bool_]) -> float:
    return float(hits.mean()) if hits.size else float("nan")


def as_array(tensor: object) -> Array:
    """Return an array of the caller or the engine as NumPy's; floats of 16 bits as float32."""
    shared = tensor if isinstance(tensor, _steep.Tensor) else _steep.Tensor(tensor)
    if shared.dtype in ("float16", "bfloat16"):
        shared = _steep.convert(shared, "float32", "metrics")
    array: Array = shared.numpy()
    return array

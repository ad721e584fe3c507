"""Learns to read digits by both APIs: whole steps, and forward and backward apart.

python two_ways.py [FOLDER]  →  FOLDER/digits.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from make_model import digits, mlp

import steep

sys.path.append(str(Path(__file__).parents[1] / "linear_regression"))
from picture import draw

SIZES, EPOCHS, BATCH, RATE = [64, 64, 10], 20, 64, 0.2
Arrays = dict[str, np.ndarray]


def batches(data: Arrays) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches of all epochs, each in an order of its own."""
    random = np.random.default_rng(0)
    orders = [random.permutation(len(data["x"])) for _ in range(EPOCHS)]
    whole = len(data["x"]) // BATCH * BATCH
    parts = [part for order in orders for part in np.split(order[:whole], whole // BATCH)]
    return [(data["x"][rows], data["label"][rows]) for rows in parts]


def by_steps(data: Arrays) -> tuple[list[float], Arrays]:
    """The loss and the update are the session's."""
    session = steep.TrainingSession(
        mlp(SIZES), loss="softmax_cross_entropy", optimizer="sgd", lr=RATE
    )
    losses = [session.step(x, labels).loss for x, labels in batches(data)]
    return losses, {name: np.asarray(w) for name, w in session.weights().items()}


def by_gradients(data: Arrays) -> tuple[list[float], Arrays]:
    """The loss and the update are ours; the session has the model's forward and backward."""
    model = mlp(SIZES)
    session = steep.GradientSession(model, wrt=[t.name for t in model.graph.initializer])
    weights = {name: np.array(w) for name, w in session.weights().items()}
    session.bind_weights(weights)
    losses = []
    for x, labels in batches(data):
        (scores,), run = session.forward({"x": x})
        shifted = np.asarray(scores) - np.max(scores, axis=1, keepdims=True)
        shares = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
        rows = np.arange(len(labels))
        losses.append(float(-np.log(shares[rows, labels]).mean()))
        shares[rows, labels] -= 1
        gradients = session.backward(run, {"logits": shares / len(labels)})
        for name, weight in weights.items():
            np.subtract(weight, RATE * np.asarray(gradients[name]), out=weight)
    return losses, weights


def main(folder: Path) -> None:
    """Trains by both, compares the weights, and draws the losses."""
    train, test = digits()
    runs, ends = {}, []
    for name, fit in (("TrainingSession", by_steps), ("GradientSession", by_gradients)):
        runs[name], weights = fit(train)
        session = steep.GradientSession(mlp(SIZES), wrt=list(weights))
        session.bind_weights(weights)
        (scores,) = session.eval({"x": test["x"]})
        accuracy = (np.asarray(scores).argmax(1) == test["label"]).mean()
        print(f"{name}: loss {runs[name][0]:.3g} → {runs[name][-1]:.3g}, accuracy {accuracy:.3f}")
        ends.append(weights)
    for name, weight in ends[0].items():
        assert np.allclose(weight, ends[1][name], atol=1e-3), name
    if not draw(runs, "Digits", folder / "digits.png", loss="cross entropy"):
        print("no picture: matplotlib is missing")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))

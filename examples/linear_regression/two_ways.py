"""Fits a linear model by both APIs: whole steps, and forward and backward apart.

python two_ways.py [FOLDER]  →  FOLDER/training_session.png, FOLDER/gradient_session.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from make_model import linear_data, linear_model
from picture import draw

import steep

STEPS, RATE = 100, 0.1


def by_steps(x: np.ndarray, labels: np.ndarray) -> tuple[list[float], dict[str, np.ndarray]]:
    """The loss and the update are the session's."""
    session = steep.TrainingSession(linear_model(4), loss="mse", optimizer="sgd", lr=RATE)
    losses = [session.step(x, labels).loss for _ in range(STEPS)]
    return losses, {name: np.asarray(w) for name, w in session.weights().items()}


def by_gradients(x: np.ndarray, labels: np.ndarray) -> tuple[list[float], dict[str, np.ndarray]]:
    """The loss and the update are ours; the session has the model's forward and backward."""
    session = steep.GradientSession(linear_model(4), wrt=["weight", "bias"])
    weights = {name: np.array(w) for name, w in session.weights().items()}
    session.bind_weights(weights)
    losses = []
    for _ in range(STEPS):
        (y,), run = session.forward({"x": x})
        apart = np.asarray(y) - labels
        losses.append(float((apart**2).mean()))
        gradients = session.backward(run, {"y": 2 * apart / apart.size})
        for name, weight in weights.items():
            np.subtract(weight, RATE * np.asarray(gradients[name]), out=weight)
    return losses, weights


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    data = linear_data(200, 4)
    ends = []
    for title, fit in (("training_session", by_steps), ("gradient_session", by_gradients)):
        losses, weights = fit(data["x"], data["label"])
        name = f"Linear regression, {title.replace('_', ' ')}"
        drawn = draw({title: losses}, name, folder / f"{title}.png")
        print(f"{title}: loss {losses[0]:.3g} → {losses[-1]:.3g}", "" if drawn else "(no picture)")
        ends.append(weights)
    for name, weight in ends[0].items():
        assert np.allclose(weight, ends[1][name], atol=1e-5), name
        print(name, weight.ravel().round(3))

"""Times an epoch of linear regression: Steep by both APIs, scikit-learn and PyTorch.

python benchmark.py [FOLDER]  →  FOLDER/linear_regression_times.png

Steep and PyTorch take batches of 32 rows; scikit-learn's SGDRegressor takes row after row. Each is
the median of several epochs, taken in turns, after one that is not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from make_model import linear_data, linear_model
from picture import draw_times

import steep

ROWS, FEATURES, BATCH, RATE, EPOCHS = 4096, 32, 32, 0.01, 9
Arrays = tuple[np.ndarray, np.ndarray]
# An epoch; it returns the weights at its end.
Contestant = Callable[[], np.ndarray]


def parts(x: np.ndarray, labels: np.ndarray) -> list[Arrays]:
    """The batches of an epoch."""
    return [(x[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(x), BATCH)]


def by_steps(x: np.ndarray, labels: np.ndarray) -> Contestant:
    """The session's own step."""
    session = steep.TrainingSession(linear_model(FEATURES), loss="mse", optimizer="sgd", lr=RATE)
    batches = parts(x, labels)

    def epoch() -> np.ndarray:
        for batch in batches:
            session.step(*batch)
        return np.asarray(session.weights()["weight"]).ravel()

    return epoch


def by_gradients(x: np.ndarray, labels: np.ndarray) -> Contestant:
    """Forward and backward of a session; the loss and the update are ours."""
    session = steep.GradientSession(linear_model(FEATURES), wrt=["weight", "bias"])
    weights = {name: np.array(w) for name, w in session.weights().items()}
    session.bind_weights(weights)
    batches = parts(x, labels)

    def epoch() -> np.ndarray:
        for rows, target in batches:
            (y,), run = session.forward({"x": rows})
            apart = np.asarray(y) - target
            gradients = session.backward(run, {"y": 2 * apart / apart.size})
            for name, weight in weights.items():
                np.subtract(weight, RATE * np.asarray(gradients[name]), out=weight)
        return weights["weight"].ravel()

    return epoch


def scikit_learn(x: np.ndarray, labels: np.ndarray) -> Contestant:
    """Row after row, with a rate for the same pace."""
    from sklearn.linear_model import SGDRegressor

    made = SGDRegressor(alpha=0, learning_rate="constant", eta0=2 * RATE / BATCH, shuffle=False)

    def epoch() -> np.ndarray:
        return made.partial_fit(x, labels.ravel()).coef_

    return epoch


def pytorch(x: np.ndarray, labels: np.ndarray) -> Contestant:
    """The usual loop."""
    import torch

    line = torch.nn.Linear(FEATURES, 1)
    torch.nn.init.zeros_(line.weight)
    torch.nn.init.zeros_(line.bias)
    optimizer = torch.optim.SGD(line.parameters(), lr=RATE)
    batches = [tuple(map(torch.from_numpy, batch)) for batch in parts(x, labels)]

    def epoch() -> np.ndarray:
        for rows, target in batches:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(line(rows), target).backward()
            optimizer.step()
        return line.weight.detach().numpy().ravel()

    return epoch


def main(folder: Path) -> None:
    """Prints a line for each, and draws the times."""
    data = linear_data(ROWS, FEATURES)
    contestants = {
        "Steep, TrainingSession": by_steps,
        "Steep, GradientSession": by_gradients,
        "scikit-learn, SGDRegressor": scikit_learn,
        "PyTorch": pytorch,
    }
    epochs = {name: make(data["x"], data["label"]) for name, make in contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in epochs}
    for turn in range(EPOCHS + 1):
        for name, epoch in epochs.items():
            began = perf_counter()
            weights = epoch()
            if turn > 0:
                times[name].append(1000 * (perf_counter() - began))
            if turn == EPOCHS:
                error = np.abs(weights - data["weight"].ravel()).max()
                print(f"{name:28} {median(times[name]):8.2f} ms/epoch, largest error {error:.2g}")
    title = f"Linear regression, {ROWS} rows of {FEATURES}"
    draw_times(
        {n: median(t) for n, t in times.items()}, title, folder / "linear_regression_times.png"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))

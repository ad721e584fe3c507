"""Times an epoch of a classifier of digits: Steep, scikit-learn and PyTorch.

python benchmark.py [FOLDER]  →  FOLDER/digits_times.png

All take the same batches with SGD. Each is the median of several epochs, taken in turns, after one
that is not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from make_model import digits, mlp

import steep

sys.path.append(str(Path(__file__).parents[1] / "linear_regression"))
from picture import draw_times

SIZES, BATCH, RATE, EPOCHS = [64, 64, 10], 64, 0.2, 9
Arrays = dict[str, np.ndarray]
Epoch = Callable[[], None]
Predict = Callable[[np.ndarray], np.ndarray]  # rows → class numbers


def parts(data: Arrays) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches of an epoch."""
    rows = range(0, len(data["x"]) - BATCH + 1, BATCH)
    return [(data["x"][i : i + BATCH], data["label"][i : i + BATCH]) for i in rows]


def of_steep(data: Arrays) -> tuple[Epoch, Predict]:
    """The session's step."""
    session = steep.TrainingSession(
        mlp(SIZES), loss="softmax_cross_entropy", optimizer="sgd", lr=RATE
    )
    batches = parts(data)

    def epoch() -> None:
        for batch in batches:
            session.step(*batch)

    return epoch, lambda x: np.asarray(session.eval(x).outputs[0]).argmax(1)


def scikit_learn(data: Arrays) -> tuple[Epoch, Predict]:
    """A call for each batch."""
    from sklearn.neural_network import MLPClassifier

    made = MLPClassifier(
        SIZES[1:-1], solver="sgd", alpha=0, learning_rate_init=RATE, momentum=0, batch_size=BATCH
    )
    batches, classes = parts(data), np.arange(SIZES[-1])

    def epoch() -> None:
        for batch in batches:
            made.partial_fit(*batch, classes=classes)

    return epoch, made.predict


def pytorch(data: Arrays) -> tuple[Epoch, Predict]:
    """The usual loop."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(*SIZES[:2]), torch.nn.ReLU(), torch.nn.Linear(*SIZES[1:])
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    batches = [tuple(map(torch.from_numpy, batch)) for batch in parts(data)]

    def epoch() -> None:
        for x, labels in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), labels).backward()
            optimizer.step()

    return epoch, lambda x: net(torch.from_numpy(x)).argmax(1).numpy()


def main(folder: Path) -> None:
    """Prints a line for each, and draws the times."""
    train, test = digits()
    contestants = {"Steep": of_steep, "scikit-learn, MLPClassifier": scikit_learn}
    contestants["PyTorch"] = pytorch
    made = {name: make(train) for name, make in contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(EPOCHS + 1):
        for name, (epoch, _) in made.items():
            began = perf_counter()
            epoch()
            if turn > 0:
                times[name].append(1000 * (perf_counter() - began))
    for name, (_, predict) in made.items():
        accuracy = (predict(test["x"]) == test["label"]).mean()
        print(f"{name:28} {median(times[name]):8.2f} ms/epoch, accuracy {accuracy:.3f}")
    title = f"Digits, layers of {', '.join(map(str, SIZES))}"
    draw_times({n: median(t) for n, t in times.items()}, title, folder / "digits_times.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))

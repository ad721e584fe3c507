"""Models so small that what a step costs is everything but arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

ROWS = 32
Step = Callable[[], None]


@dataclass(frozen=True)
class SmallWork:
    """Linear layers of these widths with ReLU between them, trained on one batch of 32 rows."""

    name: str
    title: str
    widths: tuple[int, ...]
    loss: str
    optimizer: str
    lr: float

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((ROWS, self.widths[0])).astype(np.float32)
        y = x @ rng.standard_normal((self.widths[0], self.widths[-1])).astype(np.float32)
        return (x, y.argmax(1)) if self.loss == "softmax_cross_entropy" else (x, y)

    def model(self) -> bytes:
        """Serialised ONNX: `x` float32[batch, …] → `y` float32[batch, …]."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        rng = np.random.default_rng(0)
        nodes, weights = [], []
        value = "x"
        for i, (k, n) in enumerate(pairwise(self.widths)):
            last = i == len(self.widths) - 2
            w = rng.standard_normal((k, n)).astype(np.float32) / np.float32(np.sqrt(k))
            weights.append(numpy_helper.from_array(w, f"W{i}"))
            weights.append(numpy_helper.from_array(np.zeros(n, np.float32), f"b{i}"))
            nodes.append(helper.make_node("MatMul", [value, f"W{i}"], [f"product{i}"]))
            nodes.append(
                helper.make_node("Add", [f"product{i}", f"b{i}"], ["y" if last else f"sum{i}"])
            )
            if not last:
                nodes.append(helper.make_node("Relu", [f"sum{i}"], [f"hidden{i}"]))
            value = f"hidden{i}"
        graph = helper.make_graph(
            nodes,
            self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", self.widths[0]])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", self.widths[-1]])],
            weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


def session_step(work: SmallWork) -> Step:
    from steep import TrainingSession

    x, y = work.data()
    session = TrainingSession(work.model(), loss=work.loss, optimizer=work.optimizer, lr=work.lr)

    def step() -> None:
        session.step(x, y)

    return step


def torch_step(work: SmallWork, *, compiled: bool = False) -> Step:
    import torch
    from torch import nn

    x, y = (torch.from_numpy(array) for array in work.data())
    layers: list[Any] = []
    for k, n in pairwise(work.widths):
        layers += [nn.Linear(k, n), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    optimizer: Any = torch.optim.SGD(model.parameters(), work.lr)
    if work.optimizer == "adam":
        optimizer = torch.optim.Adam(model.parameters(), work.lr, fused=True)
    criterion = nn.MSELoss() if work.loss == "mse" else nn.CrossEntropyLoss()
    run = torch.compile(model) if compiled else model

    def step() -> None:
        optimizer.zero_grad()
        criterion(run(x), y).backward()
        optimizer.step()

    return step


def scikit_step(work: SmallWork) -> Step:
    from sklearn.linear_model import SGDRegressor
    from sklearn.neural_network import MLPClassifier

    x, y = work.data()
    if work.loss == "mse":
        linear = SGDRegressor(penalty=None, learning_rate="constant", eta0=work.lr)
        return lambda: linear.partial_fit(x, y.ravel())
    model = MLPClassifier(
        work.widths[1:-1], solver=work.optimizer, alpha=0, learning_rate_init=work.lr
    )
    model.partial_fit(x, y, classes=np.arange(work.widths[-1]))
    return lambda: model.partial_fit(x, y)


SMALL = {
    "linear": SmallWork(
        "linear", "linear regression, 10 features, 32 rows", (10, 1), "mse", "sgd", 0.01
    ),
    "mlp": SmallWork(
        "mlp", "MLP 64-128-10, 32 rows, Adam", (64, 128, 10), "softmax_cross_entropy", "adam", 1e-3
    ),
}

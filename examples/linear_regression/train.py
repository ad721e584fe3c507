"""Fits a linear model without PyTorch: python train.py."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from make_model import linear_data, linear_model

import steep


def main() -> float:
    """Trains, writes the trained model, and returns the last loss."""
    data = linear_data(256, 10)
    with TemporaryDirectory() as folder:
        model = Path(folder) / "linear.onnx"
        onnx.save(linear_model(10), model)
        session = steep.TrainingSession(model, loss="mse", optimizer="sgd", lr=0.1)
        random = np.random.default_rng(0)
        loss = 0.0
        for epoch in range(50):
            order = random.permutation(len(data["x"]))
            for rows in np.split(order, len(order) // 32):
                loss = session.step(data["x"][rows], data["label"][rows]).loss
            if epoch % 10 == 9:
                print(f"epoch {epoch + 1:2}  loss {loss:.3g}")
        session.export_onnx(Path(folder) / "trained.onnx")
    print("largest error of a weight:", np.abs(session.weights()["weight"] - data["weight"]).max())
    return float(loss)


if __name__ == "__main__":
    main()

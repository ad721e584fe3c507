"""Writes an artifact of a model that learns digits, and its data, for train.mjs.

python make_artifact.py FOLDER  →  FOLDER/digits.steep, and four files with the bytes of x (float32)
and of label (int64), for training and for the test
"""

import sys
from pathlib import Path

import onnx

import steep

sys.path.insert(0, str(Path(__file__).parents[1] / "digits_mlp"))
from make_model import digits, mlp

ROWS = 64  # of a step; the last step of an epoch has the rest


def main(folder: Path) -> None:
    """Writes the files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = digits()
    for name, arrays in (("train", train), ("test", test)):
        for key, array in arrays.items():
            (folder / f"{name}_{key}.bin").write_bytes(array.tobytes())
    onnx.save(mlp([64, 64, 10]), folder / "digits.onnx")
    session = steep.TrainingSession(
        folder / "digits.onnx", loss="softmax_cross_entropy", optimizer="adam", lr=3e-3
    )
    rest = len(train["x"]) % ROWS
    session.save_artifact(
        folder / "digits.steep",
        *((train["x"][:rows], train["label"][:rows]) for rows in (ROWS, rest)),
        (test["x"],),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))

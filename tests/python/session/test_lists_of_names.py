"""One text in place of a list of names is an error: Python would take it for its letters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from session_models import linear

import steep

MODEL = linear()
X = np.ones((2, 10), np.float32)


def session(**options: object) -> object:
    return steep.TrainingSession(MODEL, loss="mse", **options)  # type: ignore[arg-type]


# Letters of these are names, or match some: "w*" would train "b" as well.
CASES: dict[str, Callable[[], object]] = {
    "trainable": lambda: session(trainable="w*"),
    "frozen": lambda: session(frozen="b*"),
    "lora_targets": lambda: session(lora_rank=1, lora_targets="w*"),
    "step_outputs": lambda: session(step_outputs="y"),
    "disabled_passes": lambda: session(disabled_passes="recompute"),
    "class_weights": lambda: session(class_weights="12"),
    "wrt": lambda: steep.GradientSession(MODEL, wrt="w"),
    "outputs": lambda: steep.GradientSession(MODEL, wrt=["w"], outputs="y"),
    "wrt of grad": lambda: steep.grad(MODEL, wrt="wb"),
    "outputs of grad": lambda: steep.grad(MODEL, wrt=["w"], outputs="y"),
    "trainable of check": lambda: steep.check(MODEL, loss="mse", trainable="w*"),
    "output_names": lambda: steep.InferenceSession(MODEL.SerializeToString()).run("y", {"x": X}),
}


@pytest.mark.parametrize("name", CASES)
def test_one_text_is_no_list_of_names(name: str) -> None:
    with pytest.raises(steep.ModelError) as raised:
        CASES[name]()
    argument = name.partition(" ")[0]
    assert raised.value.node == argument and argument in raised.value.what

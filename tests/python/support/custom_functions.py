"""What the tests of operators and optimizers of the user's own share."""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

import steep

HEAD = '<domain: "my", opset_import: ["": 18, "my": 1]> '
ROUND = HEAD + "Round (x) => (y) { y = Round (x) }"
STRAIGHT = HEAD + "RoundGrad (x, y, dy) => (dx) { dx = Identity (dy) }"
# As docs/your_own.md has it.
LION = """<domain: "steep.optimizer", opset_import: ["": 18]>
    lion <beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0>
    (w, g, exp_avg, lr, step) => (new_w, new_avg) {
    b1 = Constant <value_float: float = @beta1> ()  b2 = Constant <value_float: float = @beta2> ()
    decay = Constant <value_float: float = @weight_decay> ()  shrink = Mul (decay, w)
    apart = Sub (exp_avg, g)  towards = Mul (b1, apart)
    update = Add (towards, g)  sign = Sign (update)
    whole = Add (sign, shrink)  change = Mul (lr, whole)
    new_w = Sub (w, change)
    kept = Mul (b2, apart)  new_avg = Add (kept, g) }"""
F32 = np.float32


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Every test takes back what it registered."""
    assert not steep._steep.registered_ops()
    yield
    names = steep._steep.registered_ops()
    for name in names:
        steep._steep.unregister_op(name)
    assert not names


def parse(body: str, functions: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18, "my": 1]> {body} {functions}'
    )


def rounded_layer() -> onnx.ModelProto:
    """y = x · round(w): nothing learns without a straight-through gradient."""
    return parse(
        "g (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1.2, -0.7, 0.4, 2.6, -1.9, 0.3}>"
        " { r = my.Round (w)  y = MatMul (x, r) }"
    )


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(8, 3)).astype(F32), random.normal(size=(8, 2)).astype(F32)


def numbers(tensors: dict[str, steep.Tensor]) -> dict[str, np.ndarray]:
    return {name: np.array(tensor) for name, tensor in tensors.items()}


def run(model: onnx.ModelProto, **feed: np.ndarray) -> list[np.ndarray]:
    return steep.InferenceSession(model.SerializeToString()).run(None, feed)


# --- operators ------------------------------------------------------------------------------------

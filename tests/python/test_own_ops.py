"""Operators and optimizers of the user's own, by every front door."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator
from test_program import built

import steep

HEAD = '<domain: "my", opset_import: ["": 18, "my": 1]> '
ROUND = HEAD + "Round (x) => (y) { y = Round (x) }"
STRAIGHT = HEAD + "RoundGrad (x, y, dy) => (dx) { dx = Identity (dy) }"
LION = """<domain: "steep.optimizer", opset_import: ["": 18]>
lion <beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0>
    (w, g, exp_avg, lr, step) => (w1, m1) {
    b1 = Constant <value_float: float = @beta1> ()
    b2 = Constant <value_float: float = @beta2> ()
    wd = Constant <value_float: float = @weight_decay> ()
    d = Sub (exp_avg, g)
    e = Mul (b1, d)
    c = Add (e, g)
    sign = Sign (c)
    decay = Mul (wd, w)
    u = Add (sign, decay)
    change = Mul (lr, u)
    w1 = Sub (w, change)
    e2 = Mul (b2, d)
    m1 = Add (e2, g)
}"""
F32 = np.float32


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Every test takes back what it registered."""
    assert not steep._steep.registered_ops()
    yield
    left = steep._steep.registered_ops()
    for name in left:
        steep._steep.unregister_op(name)
    assert not left


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


def run(model: onnx.ModelProto, **fed: np.ndarray) -> list[np.ndarray]:
    return steep.InferenceSession(model.SerializeToString()).run(None, fed)


# --- operators ------------------------------------------------------------------------------------


def test_a_session_trains_by_the_gradient_that_is_given() -> None:
    x, t = arrays()
    with steep.register_op(ROUND, STRAIGHT):
        session = steep.TrainingSession(rounded_layer(), loss="mse", optimizer="sgd", lr=0.1)
        w = numbers(session.weights())["w"]
        for _ in range(4):
            _, gradients = session.gradients(x, t)
            expected = 2 * x.T @ (x @ np.round(w) - t) / t.size
            np.testing.assert_allclose(np.array(gradients["w"]), expected, rtol=1e-4, atol=1e-6)
            session.step(x, t)
            w = w - F32(0.1) * expected
    np.testing.assert_allclose(numbers(session.weights())["w"], w, rtol=1e-5, atol=1e-6)


def test_without_a_gradient_the_body_is_differentiated() -> None:
    with steep.register_op(HEAD + "Cube (x) => (y) { s = Mul (x, x)  y = Mul (s, x) }"):
        model = parse("g (float[N] x) => (float[N] y) { y = my.Cube (x) }")
        y, dx = run(steep.grad(model, wrt=["x"]), x=F32([1, 2, -3]), grad_y=F32([1, 1, 2]))
    np.testing.assert_array_equal(y, [1, 8, -27])
    np.testing.assert_array_equal(dx, [3, 12, 54])


@pytest.mark.parametrize("form", ["text", "proto", "bytes", "onnxscript"])
def test_functions_come_in_many_forms(form: str) -> None:
    function: Any = ROUND
    if form in ("proto", "bytes"):
        function = onnx.parser.parse_function(ROUND)
    if form == "bytes":
        function = function.SerializeToString()
    if form == "onnxscript":
        onnxscript = pytest.importorskip("onnxscript")
        op = onnxscript.opset18

        @onnxscript.script(onnxscript.values.Opset("my", 1), default_opset=op)
        def Round(x):
            return op.Round(x)

        function = Round
    with steep.register_op(function, STRAIGHT) as registration:
        assert registration.names == ("my.Round",)
        assert steep.register_op(ROUND, STRAIGHT).names == ()  # the same already
        assert steep.check(rounded_layer(), loss="mse") == []
        (y,) = run(rounded_layer(), x=np.eye(3, dtype=F32))
        np.testing.assert_array_equal(y, [[1, -1], [0, 3], [-2, 0]])
    (obstacle,) = steep.check(rounded_layer(), loss="mse")
    assert obstacle.op == "my.Round"


def test_second_derivatives_are_those_of_the_given_gradient() -> None:
    # y = x², with a gradient of 3·y·x·dy; so is the derivative of y in it
    square = HEAD + "Square (x) => (y) { y = Mul (x, x) }"
    given = (
        HEAD
        + """SquareGrad (x, y, dy) => (dx) {
        k = Constant <value_float = 3.0> ()
        s = Mul (y, x)  t = Mul (s, dy)  dx = Mul (t, k) }"""
    )
    x = F32([1, 2, -3])
    with steep.register_op(square, given):
        first = steep.grad(parse("g (float[N] x) => (float[N] y) { y = my.Square (x) }"), ["x"])
    second = steep.grad(first, ["x"], ["grad_x"])
    fed = {"x": x, "grad_y": np.ones_like(x)}
    (_, dx) = run(first, **fed)
    np.testing.assert_allclose(dx, 3 * x**3)
    (_, ddx) = run(second, **fed, grad_grad_x=np.ones_like(x))
    # d(3·y·x)/dx = 3·y + 3·x·(dy/dx), and dy/dx = 3·y·x
    np.testing.assert_allclose(ddx, 3 * x**2 + 9 * x**4)


def test_models_of_gradients_run_elsewhere() -> None:
    two = HEAD + "Two (x, k, z) => (a, b) { a = Mul (x, z)  b = Sub (x, z) }"
    given = HEAD + (
        'TwoGrad (x, k, z, a, b, da, db) => (dx, "", dz)'
        " { t = Mul (da, b)  dx = Add (t, db)  dz = Mul (db, a) }"
    )
    model = parse(
        "g (float[N, 3] x, float[3] z, int64[2] k) => (float[N, 3] y)"
        " { a, b = my.Two (x, k, z)  c = my.Round (a)  y = Add (c, b) }"
    )
    with steep.register_op(two, given), steep.register_op(ROUND, STRAIGHT):
        gradients = steep.grad(model, ["x", "z"])
    onnx.checker.check_model(gradients, full_check=True)
    x, dy = arrays(1)[0], arrays(2)[0]
    z = F32([0.5, -1.25, 3])
    fed = {"x": x, "z": z, "k": np.int64([0, 1]), "grad_y": dy}
    y, dx, dz = run(gradients, **fed)
    np.testing.assert_allclose(y, np.round(x * z) + x - z, rtol=1e-6)
    np.testing.assert_allclose(dx, dy * (x - z) + dy, rtol=1e-5)
    np.testing.assert_allclose(dz, (dy * x * z).sum(0), rtol=1e-4)
    for mine, other in zip((y, dx, dz), ReferenceEvaluator(gradients).run(None, fed), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    twice = steep.grad(gradients, ["x"], ["grad_x"])
    fed["grad_grad_x"] = np.ones_like(x)
    fed = {i.name: fed[i.name] for i in twice.graph.input}
    for mine, other in zip(
        run(twice, **fed), ReferenceEvaluator(twice).run(None, fed), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_bodies_of_control_flow_call_them() -> None:
    model = parse(
        """g (float[N, 3] x, bool c, int64 n) => (float[N, 3] y) {
        a = If (c) <then_branch = t () => (float[N, 3] u) { u = my.Round (x) },
                    else_branch = e () => (float[N, 3] v) { v = Neg (x) }>
        y = Loop (n, , a) <body = b (int64 i, bool d, float[N, 3] s) => (bool f, float[N, 3] r) {
            f = Identity (d)  q = my.Round (s)  r = Add (q, s) }> }"""
    )
    x = arrays(3)[0]
    with steep.register_op(ROUND, STRAIGHT):
        gradients = steep.grad(model, ["x"])
    for taken in (True, False):
        a = np.round(x) if taken else -x
        y = a
        for _ in range(3):
            y = np.round(y) + y
        fed = {"x": x, "c": np.array(taken), "n": np.array(3), "grad_y": np.ones_like(x)}
        got, dx = run(gradients, **fed)
        np.testing.assert_allclose(got, y, rtol=1e-5)
        np.testing.assert_array_equal(dx, np.full_like(x, 8 if taken else -8))


def test_bfloat16_steps_use_the_given_gradient() -> None:
    x, t = arrays(4)
    with steep.register_op(ROUND, STRAIGHT):
        settings = {"loss": "mse", "optimizer": "sgd", "lr": 0.05}
        wide = steep.TrainingSession(rounded_layer(), **settings)
        narrow = steep.TrainingSession(rounded_layer(), precision="bf16", **settings)
    before = numbers(wide.weights())["w"]
    for _ in range(3):
        wide.step(x, t)
        narrow.step(x, t)
    after, near = (numbers(s.weights())["w"] for s in (wide, narrow))
    assert np.abs(after - before).min() > 1e-3
    np.testing.assert_allclose(near, after, atol=0.02)


def test_exports_keep_node_and_function(tmp_path: Path) -> None:
    x, t = arrays(5)
    inside = parse(
        "g (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>"
        " { [mine] r = my.Round (w)  y = MatMul (x, r) }",
        HEAD + "Round (a) => (b) { b = Round (a) }",
    )
    with steep.register_op(ROUND, STRAIGHT):
        for model in (rounded_layer(), inside):
            session = steep.TrainingSession(model, loss="mse", optimizer="sgd", lr=0.2)
            session.step(x, t)
            for for_inference in (False, True):
                session.export_onnx(tmp_path / "out.onnx", for_inference)
                out = onnx.load(tmp_path / "out.onnx")
                assert out.graph.node == model.graph.node
                assert out.functions == model.functions
                again = steep.InferenceSession(tmp_path / "out.onnx").run(None, {"x": x})
                np.testing.assert_array_equal(again[0], np.array(session.eval(x).outputs[0]))
    # a file that holds the function needs nobody who knows it
    steep.InferenceSession(tmp_path / "out.onnx")
    floor = HEAD + "Round (x) => (y) { y = Floor (x) }"
    with (
        steep.register_op(floor),
        pytest.raises(steep.ModelError, match="registered otherwise"),
    ):
        steep.InferenceSession(tmp_path / "out.onnx")


def test_sessions_keep_what_they_were_made_with() -> None:
    x, t = arrays(6)
    with steep.register_op(ROUND, STRAIGHT):
        session = steep.TrainingSession(rounded_layer(), loss="mse", optimizer="sgd", lr=0.1)
        one = steep.InferenceSession(rounded_layer().SerializeToString())
    with steep.register_op(HEAD + "Round (x) => (y) { y = Neg (x) }"):
        w = numbers(session.weights())["w"]
        session.step(x, t)
        assert np.abs(numbers(session.weights())["w"] - w).max() > 0
        np.testing.assert_allclose(one.run(None, {"x": x})[0], x @ np.round(w), rtol=1e-5)
        np.testing.assert_allclose(run(rounded_layer(), x=x)[0], x @ -w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "gradient", "says"),
    [
        ("Round (x) => (y) { y = Round (x)", None, "cannot be parsed"),
        (3, None, "no function"),
        (b"\x00\x01", None, "no function"),
        (ROUND.replace('"my",', '"ai.onnx.ml",'), None, "reserved"),
        (ROUND.replace('"my",', '"steep",'), None, "reserved"),
        (HEAD + "F (x) => (y) { y = Nothing (x) }", None, "Nothing"),
        (HEAD + "F (x) => (y) { y = my.F (x) }", None, "calls itself"),
        (ROUND, HEAD + "G (x, dy) => (dx) { dx = Neg (dy) }", "number of values"),
    ],
)
def test_bad_functions_are_refused(function: Any, gradient: Any, says: str) -> None:
    with pytest.raises(steep.ModelError) as caught:
        steep.register_op(function, gradient)
    assert says in str(caught.value)
    assert caught.value.expected or caught.value.received


def test_another_body_of_the_same_name_is_refused() -> None:
    with steep.register_op(ROUND, STRAIGHT):
        for function, gradient in (
            (ROUND, None),
            (ROUND.replace("Round (x) }", "Floor (x) }"), STRAIGHT),
        ):
            with pytest.raises(steep.ModelError, match="already") as caught:
                steep.register_op(function, gradient)
            assert caught.value.node == "my.Round"


def test_nodes_and_gradients_that_do_not_fit_are_refused() -> None:
    wide = HEAD + "G (x, y, dy) => (dx) { dx = Cast <to = 11> (dy) }"
    flat = HEAD + "G (x, y, dy) => (dx) { dx = ReduceSum <keepdims = 0> (dy) }"
    for gradient, received in ((wide, "float64"), (flat, "float32[]")):
        with steep.register_op(ROUND, gradient), pytest.raises(steep.ModelError) as caught:
            steep.TrainingSession(rounded_layer(), loss="mse")
        assert (caught.value.node, caught.value.op) == ("r", "my.Round")
        assert received in caught.value.received
    with steep.register_op(HEAD + "Round <k> (x) => (y) { y = Elu <alpha: float = @k> (x) }"):
        with pytest.raises(steep.ModelError, match="no default") as caught:
            steep.InferenceSession(rounded_layer().SerializeToString())
        assert (caught.value.node, caught.value.expected) == ("r", "k")


def test_threads_may_register() -> None:
    failures = []

    def work(i: int) -> None:
        model = parse(f"g (float[2] x) => (float[2] y) {{ y = my.F{i} (x) }}")
        for _ in range(20):
            with steep.register_op(HEAD + f"F{i} (x) => (y) {{ y = Neg (x) }}"):
                if run(model, x=F32([1, 2]))[0].tolist() != [-1, -2]:
                    failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- optimizers -----------------------------------------------------------------------------------


def linear() -> onnx.ModelProto:
    return parse(
        "g (float[N, 3] x) => (float[N, 2] y)"
        " <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}>"
        " { p = MatMul (x, w)  y = Add (p, b) }"
    )


class Lion:
    """By NumPy."""

    def __init__(self, weights: dict[str, np.ndarray], beta2: float, decay: float) -> None:
        self.w = dict(weights)
        self.m = {name: np.zeros_like(w) for name, w in weights.items()}
        self.beta1, self.beta2, self.decay = F32(0.9), F32(beta2), F32(decay)

    def step(self, x: np.ndarray, t: np.ndarray, lr: float) -> None:
        error = 2 * (x @ self.w["w"] + self.w["b"] - t) / t.size
        for name, g in (("w", x.T @ error), ("b", error.sum(0))):
            w, m = self.w[name], self.m[name]
            sign = np.sign(self.beta1 * m + (1 - self.beta1) * g)
            self.w[name] = w - F32(lr) * (sign + self.decay * w)
            self.m[name] = self.beta2 * m + (1 - self.beta2) * g


def test_lion_follows_its_definition() -> None:
    with steep.register_optimizer(LION) as registration:
        assert registration.names == ("steep.optimizer.lion",)
        session = steep.TrainingSession(
            linear(), loss="mse", optimizer="lion", lr=0.02, weight_decay=0.1,
            attributes={"beta2": 0.95}, schedule="linear", total_steps=40,
        )  # fmt: skip
    assert session.optimizer_state_names == ["exp_avg/w", "exp_avg/b"]
    lion = Lion(numbers(session.weights()), 0.95, 0.1)
    for i in range(30):
        x, t = arrays(i)
        lr = session.lr
        assert session.step(x, t).lr == lr
        lion.step(x, t, lr)
        for name in ("w", "b"):
            np.testing.assert_allclose(
                numbers(session.weights())[name], lion.w[name], rtol=1e-5, atol=1e-6
            )
            np.testing.assert_allclose(
                numbers(session.optimizer_state())[f"exp_avg/{name}"], lion.m[name],
                rtol=1e-4, atol=1e-6,
            )  # fmt: skip


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lion_in_mixed_precision(precision: str) -> None:
    with steep.register_optimizer(LION):
        session = steep.TrainingSession(
            linear(), loss="mse", optimizer="lion", lr=0.02, precision=precision, clip_norm=1.0
        )
    for i in range(60):
        result = session.step(*arrays(i % 2))
    assert not result.skipped
    assert session.state("w").dtype == session.state("exp_avg/w").dtype == "float32"
    weights = numbers(session.weights())["w"]
    # weights move by ±lr: were the sum of 16 bits, small steps would be lost
    steps = (weights - F32([[1, 2], [3, 4], [5, 6]])) / F32(0.02)
    np.testing.assert_allclose(steps, np.round(steps), atol=2e-3)


def test_checkpoints_of_lion(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"loss": "mse", "optimizer": "lion", "lr": 0.01}
    with steep.register_optimizer(LION):
        session = steep.TrainingSession(linear(), **settings)
        for i in range(3):
            session.step(*arrays(i))
        session.save_checkpoint(tmp_path / "saved")
        again = steep.TrainingSession(linear(), **settings)
        again.load_checkpoint(tmp_path / "saved")
        for i in range(3, 6):
            session.step(*arrays(i))
            again.step(*arrays(i))
        for name in (*session.parameter_names, *session.optimizer_state_names):
            assert np.array(session.state(name)).tobytes() == np.array(again.state(name)).tobytes()
        other = steep.TrainingSession(linear(), loss="mse", optimizer="adam")
        with pytest.raises(steep.CheckpointError):
            other.load_checkpoint(tmp_path / "saved")
    with steep.register_optimizer(LION.replace("Sub (w, change)", "Add (w, change)")):
        other = steep.TrainingSession(linear(), **settings)
        with pytest.raises(steep.CheckpointError):
            other.load_checkpoint(tmp_path / "saved")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"momentum": 0.9}, "momentum"),
        ({"betas": (0.5, 0.999)}, "beta1"),
        ({"eps": 1e-8}, "epsilon"),
        ({"nesterov": True}, "nesterov"),
        ({"bias_correction": False}, "bias_correction"),
        ({"attributes": {"gamma": 1.0}}, "gamma"),
    ],
)
def test_settings_that_lion_lacks_are_refused(settings: dict[str, Any], says: str) -> None:
    with steep.register_optimizer(LION), pytest.raises(steep.ModelError, match=says):
        steep.TrainingSession(linear(), loss="mse", optimizer="lion", **settings)


def test_optimizers_call_operators_and_branch() -> None:
    warm = """<domain: "steep.optimizer", opset_import: ["": 18, "my": 1]>
    warm <first: int = 2> (w, g, lr, step) => (v) {
        n = Constant <value_int: int = @first> ()
        early = LessOrEqual (step, n)
        change = If (early) <then_branch = t () => (a) { s = my.Round (g)  a = Mul (lr, s) },
                             else_branch = e () => (b) { b = Mul (lr, g) }>
        v = Sub (w, change)
    }"""
    with steep.register_op(ROUND), steep.register_optimizer(warm):
        session = steep.TrainingSession(
            linear(), loss="mse", optimizer="warm", lr=0.5, attributes={"first": 1}
        )
    for i in range(3):
        x, t = arrays(i)
        before = numbers(session.weights())
        _, gradients = session.gradients(x, t)
        session.step(x, t)
        for name, g in numbers(gradients).items():
            change = np.round(g) if i == 0 else g
            np.testing.assert_allclose(
                numbers(session.weights())[name],
                before[name] - F32(0.5) * change,
                rtol=1e-5,
                atol=1e-6,
            )


def test_the_trainer_takes_a_registered_optimizer() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    lion = Lion(
        {"w": model.weight.detach().numpy().T.copy(), "b": model.bias.detach().numpy().copy()},
        0.95, 0.1,
    )  # fmt: skip
    with steep.register_optimizer(LION):
        optimizer = steep.Optimizer(
            "lion", model.parameters(), lr=0.02, weight_decay=0.1, beta2=0.95
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        trainer = steep.trainer(model, torch.nn.MSELoss(), optimizer)
        for i in range(8):
            x, t = arrays(i)
            lr = optimizer.param_groups[0]["lr"]
            trainer.step(torch.from_numpy(x), torch.from_numpy(t))
            schedule.step()
            lion.step(x, t, lr)
            np.testing.assert_allclose(
                model.weight.detach().numpy().T, lion.w["w"], rtol=1e-5, atol=1e-6
            )
        moment = optimizer.state_dict()["state"][0]["exp_avg"]
        np.testing.assert_allclose(moment.numpy().T, lion.m["w"], rtol=1e-4, atol=1e-6)
        # what is compiled in may change: another step, the same moments
        optimizer.param_groups[0]["attributes"] = {"beta2": 0.5}
        lion.beta2 = F32(0.5)
        x, t = arrays(9)
        trainer.step(torch.from_numpy(x), torch.from_numpy(t))
        lion.step(x, t, optimizer.param_groups[0]["lr"])
        moment = optimizer.state_dict()["state"][0]["exp_avg"]
        np.testing.assert_allclose(moment.numpy().T, lion.m["w"], rtol=1e-4, atol=1e-6)
    with pytest.raises(RuntimeError, match=r"trainer\.step"):
        optimizer.step()


# --- the program ----------------------------------------------------------------------------------


def program(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [built("steep"), *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    onnx.save(rounded_layer(), tmp_path / "model.onnx")
    onnx.save(linear(), tmp_path / "linear.onnx")
    onnx.save(parse("g () => () {}", f"{ROUND} {STRAIGHT} {LION}"), tmp_path / "ops.onnx")
    x, t = arrays()
    np.savez(tmp_path / "data.npz", x=x, label=t)
    return tmp_path


TRAIN = ("--data", "data.npz", "--loss", "mse", "--no-shuffle", "--batch", "8", "--epochs", "3")


def test_the_program_knows_operators_of_a_file(files: Path) -> None:
    for words in (
        ("check", "model.onnx", "--loss", "mse"),
        ("train", "model.onnx", *TRAIN),
        ("eval", "model.onnx", *TRAIN[:4]),
        ("dump", "model.onnx"),
        ("grad", "model.onnx", "-o", "gradients.onnx", "--wrt", "w"),
    ):
        without = program(*words, folder=files)
        assert without.returncode != 0 and "my.Round" in without.stdout + without.stderr, words
        done = program(*words, "--ops", "ops.onnx", folder=files)
        assert done.returncode == 0, done.stderr
    x, t = arrays()
    done = program(
        "train", "model.onnx", *TRAIN, "--ops", "ops.onnx", "--optimizer", "sgd", "--lr", "0.1",
        "--out", "out.onnx", folder=files,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with steep.register_op(ROUND, STRAIGHT):
        session = steep.TrainingSession(rounded_layer(), loss="mse", optimizer="sgd", lr=0.1)
    for _ in range(3):
        session.step(x, t)
    (out,) = onnx.load(files / "out.onnx").graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(out), numbers(session.weights())["w"])


def test_the_program_trains_with_an_optimizer_of_a_file(files: Path) -> None:
    lion = ("--ops", "ops.onnx", "--optimizer", "lion")
    settings = ("--lr", "0.02", "--weight-decay", "0.1", "--attribute", "beta2=0.95")
    train = ("train", "linear.onnx", *TRAIN)
    done = program(*train, *lion, *settings, "--checkpoint", "run", folder=files)
    assert done.returncode == 0, done.stderr
    with steep.register_optimizer(LION):
        session = steep.TrainingSession(
            linear(), loss="mse", optimizer="lion", lr=0.02, weight_decay=0.1,
            attributes={"beta2": 0.95},
        )  # fmt: skip
        for _ in range(3):
            session.step(*arrays())
        saved = steep.TrainingSession(linear(), loss="mse", optimizer="lion")
        saved.load_checkpoint(files / "run")
    for name in (*session.parameter_names, *session.optimizer_state_names):
        np.testing.assert_array_equal(np.array(session.state(name)), np.array(saved.state(name)))
    done = program("eval", "linear.onnx", *TRAIN[:4], *lion, "--checkpoint", "run", folder=files)
    assert done.returncode == 0, done.stderr
    done = program(*train, *lion, "--resume", "run", folder=files)
    assert done.returncode == 0, done.stderr
    done = program(*train, "--ops", "ops.onnx", "--resume", "run", folder=files)
    assert done.returncode == 4, done.stderr  # of another optimizer


def test_the_program_refuses_what_it_cannot_use(files: Path) -> None:
    train = ("train", "linear.onnx", *TRAIN)
    for words, code, says in (
        (("--optimizer", "lion"), 2, "lion"),
        (("--optimizer", "tiger", "--ops", "ops.onnx"), 2, "tiger"),
        (("--attribute", "beta2=0.9"), 2, "--ops"),
        (("--ops", "ops.onnx", "--optimizer", "lion", "--attribute", "beta2"), 3, "name=value"),
        (("--ops", "ops.onnx", "--optimizer", "lion", "--attribute", "k=1"), 3, "k"),
        (("--ops", "ops.onnx", "--optimizer", "lion", "--beta1", "0.8"), 2, "--beta1"),
        (("--ops", "linear.onnx"), 3, "no function"),
        (("--ops", "none.onnx"), 4, "none.onnx"),
    ):
        done = program(*train, *words, folder=files)
        assert done.returncode == code, (words, done.stderr)
        assert says in done.stderr


def test_registering_needs_no_pytorch() -> None:
    code = f"""
        import sys
        import steep
        steep.register_op({ROUND!r}, {STRAIGHT!r})
        steep.register_optimizer({LION!r})
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)

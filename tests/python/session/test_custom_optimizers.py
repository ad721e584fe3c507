"""Optimizers of the user's own, and both in the program."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from checkout import ROOT
from custom_functions import (
    F32,
    LION,
    ROUND,
    STRAIGHT,
    arrays,
    nothing_stays,
    numbers,
    parse,
    rounded_layer,
)
from steep_program import built

import steep

__all__ = ["nothing_stays"]


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


def test_lion_is_ten_lines_of_the_document() -> None:
    assert len(LION.splitlines()) <= 10
    document = (ROOT / "docs" / "your_own.md").read_text()
    assert f'steep.register_optimizer("""{LION}""")' in document


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


BAD = '<domain: "steep.optimizer", opset_import: ["": 18, "my": 1, "steep.optimizer": 1]> bad'
ITS_NAME = "steep.optimizer.bad"


@pytest.mark.parametrize(
    ("function", "says", "node", "op"),
    [
        ("(w, g, lr, step) => (v) { [n] v = Nothing (w) }", ITS_NAME, "n", "Nothing"),
        ("(w, g, lr, step) => (v) { v = my.Nothing (w) }", ITS_NAME, "v", "my.Nothing"),
        ("(w, g, lr, step) => (v) { [n] v = my.Round (w, g) }", ITS_NAME, "n", "my.Round"),
        ("(w, g, lr) => (v) { v = Sub (w, g) }", "wrong number of inputs or outputs", ITS_NAME, ""),
        ("(w, g, lr, step) => (v, u) { v = Neg (w)  u = Neg (w) }",
         "wrong number of inputs or outputs", ITS_NAME, ""),
        ("(w, g, lr, step) => (v) { u = Neg (w) }", "nothing defines", ITS_NAME, ""),
        ("(w, g, lr, step) => (v) { v = Elu <alpha: float = @k> (w) }", "declare", ITS_NAME, ""),
        ("<weight_decay: float = 0.1> (w, g, lr, step) => (v) { v = Neg (w) }", "default",
         ITS_NAME, ""),
        ("(w, g, step, lr, n) => (v, u) { v = Neg (w)  u = Neg (g) }", "state", ITS_NAME, ""),
    ],
)  # fmt: skip
def test_bad_optimizers_are_refused(function: str, says: str, node: str, op: str) -> None:
    with steep.register_op(ROUND, STRAIGHT):
        with pytest.raises(steep.ModelError) as caught:
            steep.register_optimizer(f"{BAD} {function}")
        assert says in caught.value.what
        assert (caught.value.node, caught.value.op) == (node, op)
        assert caught.value.received and caught.value.remedy
        assert steep._steep.registered_ops() == ["my.Round"]
    with pytest.raises(steep.ModelError, match="bad"):
        steep.TrainingSession(linear(), loss="mse", optimizer="bad")


def test_optimizers_that_call_themselves_are_refused() -> None:
    itself = f"{BAD} (w, g, lr, step) => (v) {{ v = steep.optimizer.bad (w, g, lr, step) }}"
    with pytest.raises(steep.ModelError, match="recursive") as caught:
        steep.register_optimizer(itself)
    assert ITS_NAME in caught.value.what
    assert caught.value.node == ITS_NAME


def test_the_bad_one_is_named_whatever_its_nodes_are_called(tmp_path: Path) -> None:
    good = ROUND.replace("y = Round", "[n] y = Round")
    bad = f"{BAD} (w, g, lr, step) => (v) {{ [n] v = Neg (nowhere) }}"
    onnx.save(parse("g () => () {}", f"{good} {bad}"), tmp_path / "ops.onnx")
    with pytest.raises(steep.ModelError) as caught:
        steep.register_ops(tmp_path / "ops.onnx")
    assert ITS_NAME in caught.value.what


@pytest.mark.parametrize("first", [True, False])
def test_the_bad_one_of_a_file_is_named_and_none_is_registered(first: bool, tmp_path: Path) -> None:
    functions = [f"{BAD} (w, g, lr, step) => (v) {{ [n] v = Nothing (w) }}", ROUND, LION]
    functions = functions if first else functions[::-1]
    onnx.save(parse("g () => () {}", " ".join(functions)), tmp_path / "ops.onnx")
    with pytest.raises(steep.ModelError) as caught:
        steep.register_ops(tmp_path / "ops.onnx")
    assert ITS_NAME in caught.value.what
    assert (caught.value.node, caught.value.op) == ("n", "Nothing")
    assert steep._steep.registered_ops() == []


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


# As Lion, but how far it goes depends on how many steps there were.
SLOWING = """<domain: "steep.optimizer", opset_import: ["": 18]>
slowing <beta2: float = 0.9> (w, g, total, lr, step) => (w1, t1) {
    b = Constant <value_float: float = @beta2> ()
    kept = Mul (b, total)  t1 = Add (kept, g)
    n = CastLike (step, w)  part = Div (t1, n)  change = Mul (lr, part)  w1 = Sub (w, change)
}"""


@pytest.mark.parametrize("name", ["lion", "slowing"])
def test_the_trainer_resumes_a_registered_optimizer(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def begin(lr: float) -> tuple[Any, Any, Any]:
        model = torch.nn.Linear(3, 2)
        optimizer = steep.Optimizer(name, model.parameters(), lr=lr, beta2=0.95)
        return model, optimizer, steep.trainer(model, torch.nn.MSELoss(), optimizer)

    def batch(i: int) -> Any:
        return map(torch.from_numpy, arrays(i))

    def steps(trainer: Any, model: Any, optimizer: Any) -> list[bytes]:
        found = []
        for i in range(3, 6):
            loss, _ = trainer.step(*batch(i))
            states = optimizer.state_dict()["state"].values()
            moments = [t for state in states for _, t in sorted(state.items())]
            for tensor in (loss, *model.parameters(), *moments):
                found.append(tensor.detach().numpy().tobytes())
        return found

    with steep.register_optimizer(LION), steep.register_optimizer(SLOWING):
        model, optimizer, trainer = begin(0.02)
        for i in range(3):
            trainer.step(*batch(i))
        torch.save(trainer.state_dict(), tmp_path / "trainer")
        torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "loop")
        trainer.save_checkpoint(tmp_path / "folder", {"at": 3})
        wanted = steps(trainer, model, optimizer)
        for kept in ("trainer", "compiled", "loop", "folder"):
            # the loop's file has the rate, too
            model, optimizer, trainer = begin(1.0 if kept == "loop" else 0.02)
            if kept in ("compiled", "folder"):
                trainer.compile(*batch(0))
            if kept == "folder":
                assert trainer.load_checkpoint(tmp_path / "folder") == {"at": 3}
            elif kept == "loop":
                weights, state = torch.load(tmp_path / "loop", weights_only=True)
                model.load_state_dict(weights)
                optimizer.load_state_dict(state)
            else:
                trainer.load_state_dict(torch.load(tmp_path / "trainer", weights_only=True))
            assert steps(trainer, model, optimizer) == wanted, kept


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

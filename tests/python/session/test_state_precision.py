"""``state_precision``: moments in 16 and 8 bits."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import steep

FORMS = ["bfloat16", "int8"]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {},
    "adamw": {"weight_decay": 0.01},
    "transformers_adamw": {},
    "lamb": {},
    "sgd": {"momentum": 0.9},
}
each_form = pytest.mark.parametrize("form", FORMS)

INPUTS, HIDDEN = 65, 71  # 4,615 elements: 18 blocks and a rest; b and v are small


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, {INPUTS}] x, float[{INPUTS}, {HIDDEN}] w, float[{HIDDEN}] b,
           float[{HIDDEN}, 1] v) => (float[n, 1] y) {{
            product = MatMul(x, w)
            sum = Add(product, b)
            hidden = Tanh(sum)
            y = MatMul(hidden, v)
        }}""")
    rng = np.random.default_rng(0)
    for name, shape in (("w", (INPUTS, HIDDEN)), ("b", (HIDDEN,)), ("v", (HIDDEN, 1))):
        array = rng.normal(0, 0.2, shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del made.graph.input[1:]
    return made


def batch(i: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(i)
    x = rng.normal(size=(32, INPUTS)).astype(np.float32)
    return x, np.sin(x.sum(1, keepdims=True)).astype(np.float32)


def session(form: str = "float32", optimizer: str = "adamw", **options: Any) -> Any:
    settings = {"loss": "mse", "lr": 0.01, **OPTIMIZERS.get(optimizer, {}), **options}
    return steep.TrainingSession(model(), optimizer=optimizer, state_precision=form, **settings)


def arrays(tensors: Any) -> dict[str, Any]:
    return {name: np.array(t) for name, t in tensors.items()}


def everything(s: Any) -> dict[str, bytes]:
    found = {**arrays(s.weights()), **arrays(s.optimizer_state())}
    return {name: a.tobytes() for name, a in found.items()}


# --- steps ----------------------------------------------------------------------------------------


@each_form
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_is_that_of_float32_on_the_same_moments(optimizer: str, form: str) -> None:
    """Only what is kept until the next step is rounded: to one of the two nearest numbers."""
    narrow, wide = session(form, optimizer), session("float32", optimizer)
    for i in range(4):
        wide.set_optimizer_state(arrays(narrow.optimizer_state()))
        losses = [s.step(*batch(i)).loss for s in (narrow, wide)]
        assert losses[0] == losses[1]
        ours, theirs = arrays(narrow.weights()), arrays(wide.weights())
        for name, w in ours.items():
            if optimizer == "lamb" and name == "w":  # its norms are sums of other parts
                np.testing.assert_allclose(w, theirs[name], rtol=1e-5, atol=1e-7)
                wide.set_weights(ours)
            elif optimizer.startswith("adam") and name == "w":  # numbers of a step are multiplied
                np.testing.assert_allclose(w, theirs[name], rtol=3e-7, atol=1e-8)
                wide.set_weights(ours)
            else:
                assert w.tobytes() == theirs[name].tobytes()
        exact = arrays(wide.optimizer_state())
        for name, m in arrays(narrow.optimizer_state()).items():
            assert m.dtype == np.float32
            spacing = 2.0 ** (-7 if form == "bfloat16" else -3)
            if name.endswith("/w"):
                block = np.abs(exact[name]).max() * 2.0**-16 if form == "int8" else 0
                assert (np.abs(m - exact[name]) <= spacing * np.abs(exact[name]) + block).all()
                assert (m != exact[name]).mean() > 0.5
            else:
                assert m.tobytes() == exact[name].tobytes()  # a small weight


@each_form
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_learns_as_in_float32(optimizer: str, form: str) -> None:
    losses = {}
    for kind in ("float32", form):
        s = session(kind, optimizer, lr=0.005)
        losses[kind] = [s.step(*batch(i % 8)).loss for i in range(80)]
    mean = {kind: np.mean(values[-40:]) for kind, values in losses.items()}
    assert mean["float32"] < 0.6 * np.mean(losses["float32"][:8])
    assert mean[form] == pytest.approx(mean["float32"], rel=0.03)


THREADS = """
import hashlib, sys
sys.path[:0] = {path!r}
import numpy as np
from test_state_precision import batch, everything, session
for form in ("bfloat16", "int8"):
    for optimizer in ("adamw", "lamb", "sgd"):
        s = session(form, optimizer, seed=5)
        for i in range(3):
            s.step(*batch(i))
        text = repr(sorted(everything(s).items()))
        print(form, optimizer, hashlib.sha256(text.encode()).hexdigest())
"""


def test_bits_depend_neither_on_threads_nor_on_the_run() -> None:
    code = THREADS.format(path=sys.path)
    code = code.replace("sys.path[:0] = [", f"sys.path[:0] = [{os.path.dirname(__file__)!r}, ")
    found = set()
    for threads in ("1", "2", "2"):
        process = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        found.add(process.stdout)
    assert len(found) == 1
    assert found.pop().count("\n") == 6


def test_the_seed_decides_how_moments_are_rounded() -> None:
    found = []
    for seed in (1, 1, 2):
        s = session("int8", seed=seed)
        s.step(*batch())
        found.append(everything(s))
    assert found[0] == found[1]
    assert found[0]["w"] == found[2]["w"] and found[0]["exp_avg/w"] != found[2]["exp_avg/w"]


@each_form
def test_accumulated_gradients(form: str) -> None:
    s = session(form)
    for _ in range(2):
        for i in range(2):
            s.step(*batch(i), accumulate=True)
        s.apply_gradients()
    assert s.step_count == 2
    s.step(*batch())
    assert all(np.isfinite(a).all() for a in arrays(s.optimizer_state()).values())


@each_form
def test_nan_and_infinity_reach_the_weights_that_they_reach_in_float32(form: str) -> None:
    made = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[64, 80] x, float[64, 80] z) => (float loss) {
            shifted = Sub(w, z)
            root = Sqrt(shifted)
            product = Mul(x, root)
            loss = ReduceSum <keepdims = 0> (product)
        }""")
    weights = np.linspace(0.1, 1, 64 * 80, dtype=np.float32).reshape(64, 80)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    x, z = np.ones((64, 80), np.float32), np.zeros((64, 80), np.float32)
    for at, factor in (((5, 7), 0), ((40, 2), -1)):  # the gradients are 0 · ∞ and -∞
        x[at], z[at] = factor, weights[at]
    x[6, 8] = 1e30  # its square is infinite
    bad = {}
    for kind in ("float32", form):
        s = steep.TrainingSession(made, state_precision=kind, lr=0.01)
        s.step(x, z)
        weight = np.array(s.weights()["w"])
        state = arrays(s.optimizer_state())
        bad[kind] = [
            np.isnan(a) | 2 * np.isposinf(a) | 4 * np.isneginf(a)
            for a in (weight, state["exp_avg/w"], state["exp_avg_sq/w"])
        ]
        assert np.isnan(weight[5, 7]) and not np.isfinite(weight[40, 2])
        assert np.isfinite(weight).sum() == weight.size - 2
        assert np.isposinf(state["exp_avg_sq/w"][6, 8])
    for ours, theirs in zip(bad[form], bad["float32"], strict=True):
        assert (ours == theirs).all()


@each_form
@pytest.mark.parametrize("shape", [(4096,), (4095,), (1,), (4097,), (5003,), (64, 0)])
def test_weights_of_any_size(shape: tuple[int, ...], form: str) -> None:
    text = ", ".join(map(str, shape))
    made = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1] x, float[{text}] w) => (float loss) {{
            product = Mul(x, w)
            square = Mul(product, product)
            loss = ReduceSum <keepdims = 0> (square)
        }}""")
    array = np.linspace(0.1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    made.graph.initializer.append(onnx.numpy_helper.from_array(array, "w"))
    del made.graph.input[1:]
    s = steep.TrainingSession(made, state_precision=form, lr=0.01)
    for _ in range(3):
        s.step(np.ones(1, np.float32))
    assert (np.array(s.weights()["w"]) < array).all()
    large = array.size >= 4096
    assert (np.array(s.state("exp_avg/w")).itemsize < 4) == large
    assert s.optimizer_state()["exp_avg/w"].shape == shape


def test_float64_weights_keep_float64_moments() -> None:
    made = model()
    for initializer in made.graph.initializer:
        array = onnx.numpy_helper.to_array(initializer).astype(np.float64)
        initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    s = steep.TrainingSession(made, loss="mse", state_precision="int8")
    s.step(*(a.astype(np.float64) for a in batch()))
    assert np.array(s.state("exp_avg/w")).dtype == np.float64


def test_averages_masters_and_clipping_go_with_it() -> None:
    s = session("int8", ema_decay=0.9, clip_norm=0.1, precision="bf16")
    for i in range(3):
        assert np.isfinite(s.step(*batch(i)).loss)
    assert s.optimizer_state()["ema/w"].shape == (INPUTS, HIDDEN)


# --- memory ---------------------------------------------------------------------------------------


def test_the_plan_counts_the_bytes_that_are_kept() -> None:
    small = 2 * 4 * (HIDDEN + HIDDEN)
    size = INPUTS * HIDDEN
    blocks = -(-size // 256)
    wanted = {"float32": 8 * size, "bfloat16": 4 * size, "int8": 2 * (size + 4 * blocks)}
    plans = {}
    for form, moments in wanted.items():
        s = session(form)
        plans[form] = plan = s.plan(*batch())
        assert plan.optimizer_bytes == small + moments
        s.step(*batch())
        assert s.peak_bytes == pytest.approx(plan.peak_bytes, abs=256)
    saved = plans["float32"].optimizer_bytes - plans["int8"].optimizer_bytes
    assert plans["float32"].peak_bytes - plans["int8"].peak_bytes == saved
    assert plans["int8"].optimizer_bytes < 0.27 * plans["float32"].optimizer_bytes + small


def test_a_memory_limit_counts_the_smaller_moments() -> None:
    least = {}
    for form in ("float32", "int8"):
        s = session(form, memory_limit="least")
        least[form] = s.plan(*batch()).run_bytes
    assert least["int8"] < least["float32"] - 5 * INPUTS * HIDDEN
    limit = (least["int8"] + least["float32"]) // 2
    session("int8", memory_limit=limit).step(*batch())
    with pytest.raises(steep.OutOfMemoryError, match="No plan fits"):
        session("float32", memory_limit=limit).step(*batch())


# --- states and checkpoints -----------------------------------------------------------------------


@each_form
def test_states_are_float32_and_restore_the_bits(form: str) -> None:
    one, other = session(form, seed=3), session(form, seed=3)
    for i in range(3):
        one.step(*batch(i))
    assert [n for n in one.optimizer_state_names if "scale" in n] == []
    other.set_weights(arrays(one.weights()))
    other.set_optimizer_state(arrays(one.optimizer_state()))
    other.step_count, other.run_count = one.step_count, one.run_count
    for i in range(3, 6):
        assert one.step(*batch(i)).loss == other.step(*batch(i)).loss
    assert everything(one) == everything(other)


@each_form
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_goes_on_from_a_checkpoint_bit_by_bit(
    optimizer: str, form: str, tmp_path: Any
) -> None:
    one, other = session(form, optimizer, seed=3), session(form, optimizer)
    for i in range(3):
        one.step(*batch(i))
    one.save_checkpoint(tmp_path / "run")
    other.load_checkpoint(tmp_path / "run")
    assert other.checkpoint_note == ""
    for i in range(3, 6):
        assert one.step(*batch(i)).loss == other.step(*batch(i)).loss
    assert everything(one) == everything(other)
    size = sum(f.stat().st_size for f in (tmp_path / "run").glob("optimizer.safetensors"))
    assert size < (6 if form == "bfloat16" else 3.5) * INPUTS * HIDDEN


@pytest.mark.parametrize("now", ["float32", *FORMS])
@pytest.mark.parametrize("then", ["float32", *FORMS])
def test_checkpoints_of_another_precision_are_converted(
    then: str, now: str, tmp_path: Any, caplog: Any
) -> None:
    one, other = session(then), session(now)
    for i in range(3):
        one.step(*batch(i))
    one.save_checkpoint(tmp_path / "run")
    other.load_checkpoint(tmp_path / "run")
    before, after = arrays(one.optimizer_state()), arrays(other.optimizer_state())
    for name, m in before.items():
        if now in ("float32", then):
            assert after[name].tobytes() == m.tobytes()
        else:
            np.testing.assert_allclose(after[name], m, rtol=1 / 16, atol=np.abs(m).max() * 2e-5)
    if then == now:
        assert other.checkpoint_note == ""
    else:
        assert f"holds moments in {then}" in other.checkpoint_note
        assert f"keeps them in {now} (state_precision)" in other.checkpoint_note
        assert other.checkpoint_note in caplog.text
    assert np.isfinite(other.step(*batch(3)).loss)
    other.save_checkpoint(tmp_path / "again")
    session(now).load_checkpoint(tmp_path / "again")


def test_scales_cannot_be_set_and_types_are_checked() -> None:
    s = session("int8")
    before = everything(s)
    scales = np.zeros(19, np.float32)
    with pytest.raises(steep.ModelError, match="Scales of a moment cannot be set"):
        s.set_optimizer_state({"exp_avg_scale/w": scales})
    with pytest.raises(steep.ShapeError, match="optimizer moment has another type") as caught:
        s.set_optimizer_state({"exp_avg/w": np.zeros((INPUTS, HIDDEN), np.int8)})
    assert f"float32[{INPUTS}, {HIDDEN}]" in str(caught.value)
    with pytest.raises(steep.ModelError, match="no such optimizer moment"):
        s.set_optimizer_state({"exp_avg/z": scales})
    assert everything(s) == before
    assert np.array(s.state("exp_avg/w")).dtype == np.int8
    assert np.array(s.state("exp_avg_sq/w")).dtype == np.uint8
    assert s.state("exp_avg_scale/w").shape == (19,)


# --- refused --------------------------------------------------------------------------------------


def test_unknown_precisions_are_refused() -> None:
    with pytest.raises(steep.ModelError, match="precision of the optimizer's states") as caught:
        session("int4")
    assert "float32, bfloat16 or int8" in str(caught.value) and "int4" in str(caught.value)


@each_form
@pytest.mark.parametrize(
    "optimizer", ["nadam", "radam", "adagrad", "adadelta", "rmsprop", "adamax", "adafactor", "muon"]
)
def test_optimizers_without_it_are_refused(optimizer: str, form: str) -> None:
    with pytest.raises(steep.ModelError, match="keeps its states in float32 only") as caught:
        session(form, optimizer)
    text = str(caught.value)
    assert "sgd, adam, adamw, transformers_adamw, lamb" in text
    assert f"{optimizer} with state_precision {form}" in text


def test_amsgrad_is_refused() -> None:
    with pytest.raises(steep.ModelError, match="float32 only") as caught:
        session("int8", "adam", amsgrad=True)
    assert "adam (amsgrad)" in str(caught.value)


def test_groups_have_a_precision_of_their_own() -> None:
    groups = [(["w"], {"optimizer": "adamw", "lr": 0.01, "state_precision": "int8"})]
    s = session("float32", "adam", groups=groups)
    s.step(*batch())
    assert np.array(s.state("exp_avg/w")).dtype == np.int8
    options = steep.OptimizerOptions() if hasattr(steep, "OptimizerOptions") else None
    if options is not None:
        with pytest.raises(steep.ModelError, match="cannot change between steps"):
            s.set_group(0, options)


def test_artifacts_refuse_it(tmp_path: Any) -> None:
    with pytest.raises(steep.ModelError, match="moments in fewer bits"):
        session("int8").save_artifact(tmp_path / "run.steep", batch())


def test_a_damaged_scale_is_found(tmp_path: Any) -> None:
    """A checksum protects files; a scale that is none is refused all the same."""
    s = session("int8")
    s.step(*batch())
    scales = np.from_dlpack(s.state("exp_avg_scale/w"))
    scales.setflags(write=True) if not scales.flags.writeable else None
    scales[3] = 3.0
    s.save_checkpoint(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())
    with pytest.raises(steep.CheckpointError, match="damaged") as caught:
        session("int8").load_checkpoint(tmp_path / "run")
    assert "exp_avg_scale/w" in str(caught.value)

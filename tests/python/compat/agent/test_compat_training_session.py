"""TrainingSession of ONNX Runtime up to 1.16: runs that train, told by TrainingParameters."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep
from steep import compat

X = np.array([[1, 2], [3, 4], [5, 7]], np.float32)
Y = np.array([[1], [0], [2]], np.float32)


@pytest.fixture(autouse=True)
def served():
    compat.install()
    yield
    compat.uninstall()


def regression() -> bytes:
    """loss = mean((X coef + intercept - label)²)."""
    nodes = [
        helper.make_node("MatMul", ["X", "coef"], ["product"]),
        helper.make_node("Add", ["product", "intercept"], ["prediction"]),
        helper.make_node("Sub", ["prediction", "label"], ["difference"]),
        helper.make_node("Mul", ["difference", "difference"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
    ]
    made = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "regression",
        [made("X", TensorProto.FLOAT, ["n", 2]), made("label", TensorProto.FLOAT, ["n", 1])],
        [made("loss", TensorProto.FLOAT, []), made("prediction", TensorProto.FLOAT, ["n", 1])],
        [
            numpy_helper.from_array(np.array([[0.5], [0.25]], np.float32), "coef"),
            numpy_helper.from_array(np.array([0.1], np.float32), "intercept"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def parameters(**settings):
    from onnxruntime.training import TrainingParameters

    told = TrainingParameters()
    told.loss_output_name = "loss"
    told.training_optimizer_name = "SGDOptimizer"
    for name, value in settings.items():
        setattr(told, name, value)
    return told


def session(**settings):
    from onnxruntime.training import TrainingSession

    return TrainingSession(regression(), parameters(**settings))


def feed(rate=0.01, x=X, y=Y):
    return {"X": x, "label": y, "Learning_Rate": np.array([rate], np.float32)}


def test_runs_train():
    made = session(weights_to_train={"coef", "intercept"})
    plain = steep.TrainingSession(regression(), output="loss", optimizer="sgd", lr=0.01)
    for rate in (0.01, 0.01, 0.002):
        plain.lr = rate
        before = plain.eval(X, Y)
        loss, prediction = made.run(None, feed(rate))
        assert loss == pytest.approx(plain.step(X, Y).loss, rel=1e-6)
        np.testing.assert_allclose(prediction, before.outputs[1], rtol=1e-6)
    (loss,) = made._sess.run(["loss"], feed(0))
    state = made.get_state()
    for name, value in plain.weights().items():
        np.testing.assert_allclose(state[name], value, rtol=1e-6)
    assert [i.name for i in made.get_inputs()] == ["X", "label", "Learning_Rate"]
    assert [o.name for o in made.get_outputs()] == ["loss", "prediction"]
    assert made.is_output_fp32_node("loss") and not made.is_output_fp32_node("X")


def test_runs_with_bindings_train():
    from onnxruntime import OrtValue, RunOptions

    made = session()
    binding = made.io_binding()
    for name, value in feed().items():
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(value))
    binding.bind_output("loss", "cpu")
    losses = []
    for _ in range(3):
        made._sess.run_with_iobinding(binding, RunOptions())
        losses.append(float(binding.get_outputs()[0].numpy()))
    assert losses[0] > losses[1] > losses[2]
    (value,) = made.run_with_ort_values(["loss"], feed(0))
    assert float(value.numpy()) < losses[2]


def test_a_loss_that_is_not_a_float32_scalar():
    from onnxruntime import TrainingSession

    text = """<ir_version: 8, opset_import: ["": 17]>
    g (double[n, 1] x, double[n, 1] label) => (double[1, 1] loss) <double[1] w = {0.5}> {
        y = Mul(x, w)
        difference = Sub(y, label)
        loss = ReduceSumSquare(difference)
    }"""
    made = TrainingSession(onnx.parser.parse_model(text).SerializeToString(), parameters())
    ones = np.ones((2, 1))
    (loss,) = made.run(None, {"x": ones / 3, "label": ones, "Learning_Rate": np.float32([0.1])})
    assert loss.shape == (1, 1) and loss.dtype == np.float64
    np.testing.assert_allclose(loss, [[2 * (1 / 6 - 1) ** 2]], rtol=1e-15)


@pytest.mark.parametrize("runs", [1, 2])
def test_a_loss_that_is_not_finite_is_returned(runs, caplog):
    made = session(gradient_accumulation_steps=runs)
    before = made.get_state()
    for bad in (np.inf, np.nan):
        loss, prediction = made.run(None, feed(x=X * np.float32(bad)))
        assert not np.isfinite(loss) and prediction.shape == (3, 1)
        assert "The loss of step 1 is" in caplog.text
        caplog.clear()
    assert all(np.array_equal(before[n], v) for n, v in made.get_state().items())
    for _ in range(runs):
        made.run(None, feed())
    assert not np.array_equal(before["coef"], made.get_state()["coef"])
    with pytest.raises(steep.ShapeError):
        made.run(None, feed(x=X[:, :1]))


def test_a_run_without_an_update():
    from onnxruntime import RunOptions

    made = session()
    before = made.get_state()
    options = RunOptions()
    options.only_execute_path_to_fetches = True
    made.run(["prediction"], feed(), options)
    assert all(np.array_equal(before[n], v) for n, v in made.get_state().items())


def test_runs_that_make_one_update():
    parts, whole = session(gradient_accumulation_steps=3), session()
    for i in range(3):
        before = parts.get_state()
        parts.run(None, feed(0.01, X[i : i + 1], Y[i : i + 1]))
    whole.run(None, feed(0.01))
    for name, value in whole.get_state().items():
        np.testing.assert_allclose(parts.get_state()[name], value, rtol=1e-6)
        assert not np.array_equal(before[name], value)


def test_some_weights_stay():
    made = session(weights_not_to_train={"intercept"})
    assert made.parameter_names == ["coef"]
    assert session(immutable_weights={"coef": {}}).parameter_names == ["intercept"]


@pytest.mark.parametrize("apart", [False, True])
def test_attributes_of_adam(apart):
    told = {"alpha": 0.8, "beta": 0.99, "lambda": 0.1, "epsilon": 1e-7}
    floats = {"coef": told, "intercept": {**told, "lambda": 0.0} if apart else told}
    made = session(
        training_optimizer_name="AdamOptimizer",
        optimizer_attributes_map=floats,
        optimizer_int_attributes_map={"coef": {"do_bias_correction": 1}, "intercept": {}},
    )
    plain = steep.TrainingSession(
        regression(),
        output="loss",
        optimizer="adamw",
        betas=(0.8, 0.99),
        eps=1e-7,
        weight_decay=0.1,
        clip_norm=1.0,
        groups=[(["intercept"], {"weight_decay": 0.0})] if apart else [],
    )
    for _ in range(3):
        plain.lr = 0.01
        made.run(None, feed(0.01))
        plain.step(X, Y)
    for name, value in plain.weights().items():
        np.testing.assert_allclose(made.get_state()[name], value, rtol=1e-5)
    moments = made.get_optimizer_state()
    assert {"Moment_1", "Moment_2"} <= set(moments["coef"])


def test_states_come_back():
    made, other = (session(training_optimizer_name="AdamOptimizer") for _ in range(2))
    made.run(None, feed())
    state = made.get_state()
    assert {"coef", "Moment_1_coef", "Moment_2_intercept"} <= set(state)
    other.load_state(state, strict=True)
    assert all(np.array_equal(state[n], v) for n, v in other.get_state().items())
    assert set(made.get_model_state()["full_precision"]) == {"coef", "intercept"}
    with pytest.raises(steep.ModelError, match="Moment_1_coef"):
        other.load_state({"coef": state["coef"]}, strict=True)
    with pytest.raises(steep.ModelError, match="nothing"):
        other.load_state({"nothing": state["coef"]})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"training_optimizer_name": "Newton"}, "Newton"),
        ({"world_size": 2}, "world_size"),
        ({"set_gradients_as_graph_outputs": True}, "set_gradients_as_graph_outputs"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps"),
        (
            {
                "training_optimizer_name": "AdamOptimizer",
                "optimizer_attributes_map": {"coef": {"max_norm_clip": 2.0}},
            },
            "max_norm_clip",
        ),
        (
            {
                "training_optimizer_name": "AdamOptimizer",
                "optimizer_attributes_map": {"coef": {"lambda": 0.1}},
                "optimizer_int_attributes_map": {"coef": {"weight_decay_mode": 1}},
            },
            "weight_decay_mode",
        ),
        (
            {
                "training_optimizer_name": "AdamOptimizer",
                "optimizer_attributes_map": {"coef": {"lamda": 0.1}},
            },
            "lamda",
        ),
        (
            {
                "training_optimizer_name": "LambOptimizer",
                "optimizer_attributes_map": {"coef": {"ratio_max": 2.0}},
            },
            "ratio_max",
        ),
    ],
)
def test_what_is_not_to_be_had(settings, text):
    with pytest.raises(steep.DataError, match=text):
        session(**settings)


def test_outputs_and_settings_that_are_not_there():
    with pytest.raises(steep.DataError, match="no such output"):
        session().run(["gain"], feed())
    with pytest.raises(AttributeError, match="weights_to_trian"):
        parameters(weights_to_trian={"coef"})
    with pytest.raises(steep.DataError, match="load_state"):
        parameters().set_optimizer_initial_state({})


@pytest.mark.parametrize("rate", [{}, {"Learning_Rate": np.ones(2, np.float32)}])
def test_a_run_without_a_learning_rate_is_refused(rate):
    made = session()
    before = made.get_state()
    with pytest.raises(steep.DataError, match="Learning_Rate"):
        made.run(None, {"X": X, "label": Y, **rate})
    np.testing.assert_equal(made.get_state(), before)


@pytest.mark.parametrize(
    "settings",
    [
        {"training_optimizer_name": "AdamOptimizer"},
        {
            "training_optimizer_name": "AdamOptimizer",
            "optimizer_attributes_map": {"coef": {"lambda": 0.1}},
        },
        {
            "training_optimizer_name": "LambOptimizer",
            "optimizer_int_attributes_map": {
                name: {"do_bias_correction": 1} for name in ("coef", "intercept")
            },
        },
    ],
)
def test_a_state_goes_on_with_its_counts(settings, caplog):
    first, second = session(**settings), session(**settings)
    for _ in range(3):
        first.run(None, feed())
    state = first.get_state()
    second.load_state(state, strict=True)
    assert not caplog.records
    for made in (first, second):
        made.run(None, feed())
    np.testing.assert_equal(second.get_state(), first.get_state())
    count = (
        "Step" if settings["training_optimizer_name"] == "LambOptimizer" else "Update_Count_coef"
    )
    assert state[count] == 4
    optimizer = first.get_optimizer_state()
    of_all = optimizer.get("shared_optimizer_state", optimizer["coef"])
    assert of_all[count.removesuffix("_coef")] == 5


def test_a_state_that_does_not_fit_changes_nothing():
    made = session(training_optimizer_name="AdamOptimizer")
    made.run(None, feed())
    before = made.get_state()
    doubled = {name: value * 2 for name, value in before.items() if name in ("coef", "intercept")}
    for name, value in (
        ("Moment_1_coef", np.ones(1, np.float32)),
        ("Update_Count_coef", np.zeros(1, np.int64)),
    ):
        with pytest.raises(steep.Error):
            made.load_state({**doubled, name: value})
        np.testing.assert_equal(made.get_state(), before)


def test_without_parameters_it_is_ours():
    from onnxruntime.training import TrainingSession

    made = TrainingSession(regression(), output="loss", optimizer="sgd", lr=0.01)
    assert made.step(X, Y).loss > made.step(X, Y).loss
    with pytest.raises(steep.DataError, match="TrainingParameters"):
        made.run(None, feed())

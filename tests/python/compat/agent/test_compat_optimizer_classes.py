"""Gradient descent in classes of a user's, around both APIs of ONNX Runtime Training's guide."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from steep import compat

RATE, BATCH = 0.1, 4
LINEAR = "product = MatMul(X, coef) prediction = Add(product, intercept)"
HEAD = '<ir_version: 8, opset_import: ["": 15]>'


@pytest.fixture(autouse=True)
def served():
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture
def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(12, 3)).astype(np.float32)
    return x, (x @ np.float32([[1], [-2], [0.5]]) + 3).astype(np.float32)


def model(text):
    return onnx.parser.parse_model(HEAD + text).SerializeToString()


def weights():
    return {"coef": np.zeros((3, 1), np.float32), "intercept": np.zeros(1, np.float32)}


def linear(inputs="float[N, 3] X", outputs="float[N, 1] prediction", more=""):
    made = onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({outputs}) {{ {LINEAR} {more} }}")
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights().items()
    )
    return made.SerializeToString()


def reference(x, y, steps):
    """Losses and weights of descent by the sum of squares, divided by the batch's size."""
    state, losses = weights(), []
    for i in range(steps):
        rows = slice(i % 3 * BATCH, (i % 3 + 1) * BATCH)
        difference = x[rows] @ state["coef"] + state["intercept"] - y[rows]
        losses.append((difference**2).sum())
        state["coef"] = state["coef"] - RATE / BATCH * 2 * x[rows].T @ difference
        state["intercept"] = state["intercept"] - RATE / BATCH * 2 * difference.sum(0)
    return losses, state


class FirstOptimizer:
    """One step is a run of a TrainingSession, on memory given by address."""

    def __init__(self):
        from onnxruntime import SessionOptions, TrainingParameters, TrainingSession
        from onnxruntime.capi import _pybind_state as state

        parameters = TrainingParameters()
        parameters.loss_output_name = "loss"
        parameters.use_mixed_precision = False
        parameters.weights_to_train = {"coef", "intercept"}
        parameters.training_optimizer_name = "SGDOptimizer"
        parameters.optimizer_attributes_map = {name: {} for name in weights()}
        parameters.optimizer_int_attributes_map = {name: {} for name in weights()}
        options = SessionOptions()
        options.log_severity_level = 4
        squares = "difference = Sub(prediction, label) loss = ReduceSumSquare(difference)"
        source = linear("float[N, 3] X, float[N, 1] label", "float[1, 1] loss", squares)
        self.session = TrainingSession(
            source, parameters, options, providers=["CPUExecutionProvider"]
        )
        self.device = state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)
        self.value = lambda array: state.OrtValue.ortvalue_from_numpy(array, self.device)

    def fit(self, x, y, steps):
        bind = self.session.io_binding()._iobinding
        inputs = [i.name for i in self.session.get_inputs()]
        values = [self.value(x), self.value(y)]
        bind.bind_ortvalue_input(inputs[2], self.value(np.float32([RATE / BATCH])))
        bind.bind_output("loss", self.device)
        losses = []
        for step in range(steps):
            row = step % 3 * BATCH
            for name, array, value in zip(inputs[:2], (x, y), values, strict=True):
                columns = array.shape[1]
                address = value.data_ptr() + row * columns * array.itemsize
                bind.bind_input(name, self.device, array.dtype, (BATCH, columns), address)
            self.session._sess.run_with_iobinding(bind, None)
            losses.append(bind.get_outputs()[0].numpy()[0, 0])
        return losses, self.session.get_state()


class SecondOptimizer:
    """Forward, loss, backward and update are four calls, whose values stay in OrtValues."""

    def __init__(self):
        from onnxruntime import InferenceSession, RunOptions
        from onnxruntime.capi import _pybind_state as state

        self.state, names = state, sorted(weights())
        config = state.OrtModuleGraphBuilderConfiguration()
        config.initializer_names = config.initializer_names_to_train = names
        config.input_names_require_grad = ["X"]
        config.build_gradient_graph = True
        config.graph_transformer_config = state.TrainingGraphTransformerConfiguration()
        builder = state.OrtModuleGraphBuilder()
        builder.initialize(linear(), config)
        builder.build()
        cpu = {"providers": ["CPUExecutionProvider"], "provider_options": [{}]}
        training = InferenceSession(builder.get_model(), **cpu)
        self.forward_alone = InferenceSession(builder.get_inference_optimized_model(), **cpu)
        self.device = state.OrtDevice(state.OrtDevice.cpu(), state.OrtMemType.DEFAULT, 0)
        self.names = [i.name for i in training.get_inputs()]
        gradients = [o.name for o in training.get_outputs()]
        self.agent = state.TrainingAgent(
            training._sess, self.names, [self.device], gradients, [self.device] * len(gradients)
        )
        self.cache = state.OrtValueCache()
        self.run_options = RunOptions()
        self.run_options.training_mode = True
        self.loss = InferenceSession(
            model(
                "g (float[N, 1] a, float[N, 1] b) => (float[1, 1] loss, float[N, 1] gradient) "
                "<float two = {2}> "
                "{ d = Sub(a, b) loss = ReduceSumSquare(d) gradient = Mul(d, two) }"
            ),
            **cpu,
        )
        self.axpy = InferenceSession(
            model(
                "g (float[] x, float[] y, float[1] a) => (float[] z) "
                "{ m = Mul(x, a) z = Add(m, y) }"
            ),
            **cpu,
        )
        self.value = lambda array: state.OrtValue.ortvalue_from_numpy(array, self.device)

    def call(self, session, inputs, outputs):
        binding = self.state.SessionIOBinding(session._sess)
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            if value is None:
                binding.bind_output(name, self.device)
            else:
                binding.bind_ortvalue_output(name, value)
        session._sess.run_with_iobinding(binding, self.run_options)
        return binding.get_outputs()

    def fit(self, x, y, steps):
        values = {name: self.value(array) for name, array in weights().items()}
        factor, losses = self.value(np.float32([-RATE / BATCH])), []
        outputs, gradients = self.state.OrtValueVector(), self.state.OrtValueVector()
        for step in range(steps):
            rows = slice(step % 3 * BATCH, (step % 3 + 1) * BATCH)
            feeds = self.state.OrtValueVector()
            for value in (self.value(x[rows]), *(values[name] for name in self.names[1:])):
                feeds.push_back(value)
            run = self.state.PartialGraphExecutionState()
            self.agent.run_forward(feeds, outputs, run, self.cache)
            plain = self.call(
                self.forward_alone, dict(zip(self.names, feeds, strict=True)), {"prediction": None}
            )
            np.testing.assert_allclose(plain[0].numpy(), outputs[0].numpy(), rtol=1e-6)
            loss, gradient = self.call(
                self.loss,
                {"a": outputs[0], "b": self.value(y[rows])},
                {"loss": None, "gradient": None},
            )
            seeds = self.state.OrtValueVector()
            seeds.push_back(gradient)
            self.agent.run_backward(seeds, gradients, run)
            for name, change in zip(self.names[1:], list(gradients)[1:], strict=True):
                weight = values[name]
                self.call(self.axpy, {"x": change, "y": weight, "a": factor}, {"z": weight})
            losses.append(loss.numpy()[0, 0])
        return losses, {name: value.numpy() for name, value in values.items()}


@pytest.mark.parametrize("kind", [FirstOptimizer, SecondOptimizer])
def test_they_descend_as_the_formula_says(kind, data):
    losses, state = kind().fit(*data, 9)
    wanted_losses, wanted = reference(*data, 9)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    for name, value in wanted.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-4, atol=1e-6)
    assert losses[-1] < losses[0] / 2

"""TrainingAgent and its neighbours: the second API of ONNX Runtime Training's guide, run."""

from __future__ import annotations

import textwrap

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep
from steep import compat


@pytest.fixture(autouse=True)
def served():
    compat.install()
    yield
    compat.uninstall()


# The guide's two methods, as they stand there. `cls` of the first is the class that has it.
FORWARD = """
def forward(self, inputs, training=False):
    forward_inputs = cls.input_to_ort(
        inputs, cls._devices, cls._debug)

    if training:
        forward_outputs = OrtValueVector()
        state = PartialGraphExecutionState()
        self.states_.append(state)
        cls._training_agent.run_forward(
            forward_inputs, forward_outputs, state, cls._cache)
        return forward_outputs
    else:
        iobinding = SessionIOBinding(cls._sess_eval._sess)
        for name, inp in zip(
                cls._grad_input_names, forward_inputs):
            iobinding.bind_ortvalue_input(name, inp)

        for name, dev in zip(
                cls._output_names, cls._fw_no_grad_output_device_info):
            iobinding.bind_output(name, dev)

        cls._sess_eval._sess.run_with_iobinding(
            iobinding, cls._run_options)
        return iobinding.get_outputs()
"""
BACKWARD = """
def backward(self, grad_outputs):
    cls = self.__class__
    inputs = self.saved_tensors
    state = self.states_.pop()
    backward_inputs = cls.input_to_ort(
        grad_outputs, cls._bw_outputs_device_info, cls._debug)

    backward_outputs = OrtValueVector()
    cls._training_agent.run_backward(
        backward_inputs, backward_outputs, state)
    return backward_outputs
"""

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W, Z = np.ones((3, 1), np.float32), np.zeros(1, np.float32)
DY = np.ones((2, 1), np.float32)


def value(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def linear(more=(), outputs=()) -> onnx.ModelProto:
    """y = x w + z, with w of ones."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "z"], ["y"]),
        *more,
    ]
    weights = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(Z, "z")]
    graph = helper.make_graph(
        nodes, "linear", [value("x", ["n", 3])], [value("y", ["n", 1]), *outputs], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def built(model, **settings):
    from onnxruntime.capi._pybind_state import (
        OrtModuleGraphBuilder,
        OrtModuleGraphBuilderConfiguration,
        TrainingGraphTransformerConfiguration,
    )

    config = OrtModuleGraphBuilderConfiguration()
    config.initializer_names = ["w", "z"]
    config.initializer_names_to_train = ["w", "z"]
    config.input_names_require_grad = ["x"]
    for name, setting in settings.items():
        setattr(config, name, setting)
    builder = OrtModuleGraphBuilder()
    builder.initialize(model.SerializeToString(), config)
    builder.build(TrainingGraphTransformerConfiguration())
    return builder


def function_of(model, run_options=None):
    """The guide's class around its two methods."""
    import onnxruntime
    from onnxruntime.capi import _pybind_state as state

    builder = built(model)
    training = onnx.load_model_from_string(builder.get_gradient_model())
    forward = onnx.load_model_from_string(builder.get_forward_model())
    device = state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)
    session = onnxruntime.InferenceSession(
        builder.get_gradient_model(), providers=["CPUExecutionProvider"]
    )
    inputs = [i.name for i in training.graph.input]
    gradients = [o.name for o in training.graph.output]
    outputs = [o.name for o in forward.graph.output]

    class Function:
        _devices = [device] * len(inputs)
        _bw_outputs_device_info = [device] * len(gradients)
        _fw_no_grad_output_device_info = [device] * len(outputs)
        _debug = False
        _cache = state.OrtValueCache()
        _grad_input_names = inputs
        _output_names = outputs
        _run_options = run_options or state.RunOptions()
        _sess_eval = onnxruntime.InferenceSession(builder.get_forward_model())
        _training_agent = state.TrainingAgent(
            session._sess,
            inputs,
            [device] * len(outputs),
            gradients,
            [device] * len(gradients),
        )
        saved_tensors = ()

        def __init__(self):
            self.states_ = []

        @staticmethod
        def input_to_ort(tensors, devices, debug):
            values = state.OrtValueVector()
            for tensor, place in zip(tensors, devices, strict=False):
                values.push_back(state.OrtValue.ortvalue_from_numpy(tensor, place))
            return values

    names = {**vars(state), "cls": Function}
    for name in ("OrtValueVector", "PartialGraphExecutionState", "SessionIOBinding"):
        names[name] = getattr(state, name)
    exec(textwrap.dedent(FORWARD), names)
    exec(textwrap.dedent(BACKWARD), names)
    Function.forward, Function.backward = names["forward"], names["backward"]
    return Function()


def arrays(values):
    return [v.numpy() for v in values]


def test_the_guide():
    function = function_of(linear())
    assert type(function)._grad_input_names == ["x", "w", "z"]
    (y,) = arrays(function.forward([X, W, Z]))
    np.testing.assert_allclose(y, [[3], [12]])
    (y,) = arrays(function.forward([X, W, Z], training=True))
    np.testing.assert_allclose(y, [[3], [12]])
    dx, dw, dz = arrays(function.backward([DY]))
    np.testing.assert_allclose(dx, np.ones((2, 3)))
    np.testing.assert_allclose(dw, [[3], [5], [7]])
    np.testing.assert_allclose(dz, [2])


def test_agents_that_make_their_session():
    from onnxruntime.capi import _pybind_state as state
    from onnxruntime.training.ortmodule._execution_agent import InferenceAgent, TrainingAgent

    builder, device = built(linear()), state.OrtDevice(0, 0, 0)
    agent = InferenceAgent(builder.get_forward_model(), None, ["CPUExecutionProvider"])
    binding = agent.io_binding()
    for name, array in (("x", X), ("w", W), ("z", Z)):
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    result = agent.run_forward(binding, state.RunOptions())
    np.testing.assert_allclose(arrays(result.ortvalues)[0], [[3], [12]])

    names = [i.name for i in onnx.load_from_string(builder.get_gradient_model()).graph.output]
    agent = TrainingAgent(
        builder.get_gradient_model(), ["x", "w", "z"], [device], names, [device] * 3
    )
    held, outputs, gradients = state.PartialGraphExecutionState(), [], []
    feeds = [state.OrtValue.ortvalue_from_numpy(a, device) for a in (X, W, Z, DY)]
    agent.run_forward(feeds[:3], outputs, held)
    agent.run_backward(feeds[3:], gradients, held)
    np.testing.assert_allclose(arrays(outputs)[0], [[3], [12]])
    np.testing.assert_allclose(arrays(gradients)[1], [[3], [5], [7]])


def test_several_runs_wait():
    function = function_of(linear())
    function.forward([X, W, Z], training=True)
    function.forward([X[:1], 2 * W, Z], training=True)
    dx, dw, _ = arrays(function.backward([DY[:1]]))
    np.testing.assert_allclose(dx, [[2, 2, 2]])
    np.testing.assert_allclose(dw, X[:1].T)
    assert arrays(function.backward([DY]))[0].shape == (2, 3)


def test_the_graphs_and_their_names():
    from onnxruntime.capi._pybind_state import Severity

    best = helper.make_node("ArgMax", ["y"], ["best"], axis=0)
    model = linear([best], [value("best", [1, 1], TensorProto.INT64)])
    builder = built(model, loglevel=Severity.ERROR)
    training = onnx.load_model_from_string(builder.get_gradient_model())
    assert [i.name for i in training.graph.input] == ["x", "w", "z"]
    assert [o.name for o in training.graph.output] == ["x_grad", "w_grad", "z_grad"]
    assert not training.graph.initializer
    info = builder.get_graph_info()
    assert info.user_input_names == ["x"] and info.user_output_names == ["y", "best"]
    assert info.user_input_grad_names == {"x": "x_grad"}
    assert info.initializer_names == info.initializer_names_to_train == ["w", "z"]
    assert info.initializer_grad_names_to_train == ["w_grad", "z_grad"]
    assert info.output_grad_indices_non_differentiable == [1]
    assert info.module_output_gradient_name == ["y_grad"]
    function = function_of(model)
    y, index = arrays(function.forward([X, W, Z], training=True))
    np.testing.assert_allclose(y, [[3], [12]])
    assert index.dtype == np.int64 and index == 1
    np.testing.assert_allclose(arrays(function.backward([DY]))[2], [2])


def test_a_weight_that_is_not_trained_stays():
    builder = built(
        linear(), initializer_names=["w"], initializer_names_to_train=["w"],
        input_names_require_grad=[],
    )  # fmt: skip
    training = onnx.load_model_from_string(builder.get_gradient_model())
    assert [i.name for i in training.graph.input] == ["x", "w"]
    assert [i.name for i in training.graph.initializer] == ["z"]
    assert [o.name for o in training.graph.output] == ["w_grad"]


def test_build_of_old_releases_has_its_settings_in_the_other_ones(caplog):
    from onnxruntime.capi import _pybind_state as state

    config = state.OrtModuleGraphBuilderConfiguration()
    assert config.graph_transformer_config.propagate_cast_ops_config.level == 1
    config.graph_transformer_config = state.TrainingGraphTransformerConfiguration()
    config.initializer_names = config.initializer_names_to_train = ["w"]
    builder = state.OrtModuleGraphBuilder()
    builder.initialize(linear().SerializeToString(), config)
    builder.build()
    training = onnx.load_model_from_string(builder.get_model())
    assert [o.name for o in training.graph.output] == ["w_grad"]


def test_lists_of_results_that_are_used_again():
    from onnxruntime.capi._pybind_state import OrtValueVector, PartialGraphExecutionState

    function = function_of(linear())
    cls = type(function)
    outputs, gradients = OrtValueVector(), OrtValueVector()
    for factor in (1, 2):
        state = PartialGraphExecutionState()
        feeds = cls.input_to_ort([factor * X, W, Z], cls._devices, False)
        cls._training_agent.run_forward(feeds, outputs, state, cls._cache)
        memory = [v.data_ptr() for v in (*outputs, *gradients)]
        seeds = cls.input_to_ort([DY], cls._devices, False)
        cls._training_agent.run_backward(seeds, gradients, state)
        assert len(outputs) == 1 and len(gradients) == 3
        np.testing.assert_allclose(outputs[0].numpy(), factor * X @ W)
        np.testing.assert_allclose(gradients[1].numpy(), factor * X.T @ DY)
    assert memory == [v.data_ptr() for v in (*outputs, *gradients)]
    feeds = cls.input_to_ort([X[:1], W, Z], cls._devices, False)
    with pytest.raises(steep.ShapeError, match="cannot change"):
        cls._training_agent.run_forward(feeds, outputs, PartialGraphExecutionState())
    with pytest.raises(steep.DataError, match="another number"):
        cls._training_agent.run_forward(feeds, gradients, PartialGraphExecutionState())


def test_extents_of_one():
    function = function_of(linear())
    function.forward([X, W.reshape(3), Z.reshape(1, 1)], training=True)
    dx, dw, dz = arrays(function.backward([DY.reshape(1, 2)]))
    np.testing.assert_allclose(dx, np.ones((2, 3)))
    np.testing.assert_allclose(dw, [3, 5, 7])
    np.testing.assert_allclose(dz, [[2]])
    with pytest.raises(steep.ShapeError):
        function.forward([X, W[:2], Z], training=True)


def test_a_training_graph_is_a_file_too(tmp_path):
    import onnxruntime

    path = tmp_path / "training.onnx"
    path.write_bytes(built(linear()).get_gradient_model())
    session = onnxruntime.InferenceSession(str(path))
    assert [i.name for i in session.get_inputs()] == ["x", "w", "z"]
    assert [o.type for o in session.get_outputs()] == ["tensor(float)"] * 3
    with pytest.raises(steep.DataError, match="TrainingAgent"):
        session.run(None, {"x": X, "w": W, "z": Z})


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"initializer_names": ["w", "t"]}, steep.ModelError, "t"),
        ({"initializer_names_to_train": ["b"]}, steep.ModelError, "initializer_names_to_train"),
        ({"input_names_require_grad": ["w"]}, steep.ModelError, "input_names_require_grad"),
        (
            {"initializer_names_to_train": [], "input_names_require_grad": []},
            steep.DataError,
            "There is nothing to differentiate with respect to",
        ),
        ({"no_such_setting": 1}, AttributeError, "no_such_setting"),
    ],
)
def test_settings_that_do_not_fit(settings, kind, text):
    with pytest.raises(kind, match=text):
        built(linear(), **settings)


def test_calls_in_another_order():
    from onnxruntime.capi import _pybind_state as state

    builder = state.OrtModuleGraphBuilder()
    for call in (builder.build, builder.get_gradient_model):
        with pytest.raises(steep.DataError):
            call()
    with pytest.raises(steep.ModelError, match="not an ONNX model"):
        builder.initialize(b"none", state.OrtModuleGraphBuilderConfiguration())
    function = function_of(linear())
    agent = type(function)._training_agent
    empty = state.PartialGraphExecutionState()
    with pytest.raises(steep.DataError, match="waits"):
        agent.run_backward([], [], empty)
    with pytest.raises(steep.DataError, match="x, w, z"):
        agent.run_forward([], [], empty)
    function.forward([X, W, Z], training=True)
    waiting = function.states_[0]
    with pytest.raises(steep.ShapeError, match="y"):
        agent.run_backward(function.input_to_ort([X], type(function)._devices, False), [], waiting)
    agent.run_backward(function.input_to_ort([DY], type(function)._devices, False), [], waiting)
    with pytest.raises(steep.DataError, match="waits"):
        agent.run_backward(function.input_to_ort([DY], type(function)._devices, False), [], waiting)


def test_agents_of_what_is_no_training_graph():
    import onnxruntime
    from onnxruntime.capi._pybind_state import OrtDevice, TrainingAgent

    cpu, cuda = OrtDevice.make("cpu"), OrtDevice(OrtDevice.cuda(), 0, 0)
    plain = onnxruntime.InferenceSession(linear().SerializeToString())
    with pytest.raises(steep.DataError, match="no training graph"):
        TrainingAgent(plain, ["x"], [cpu], ["x_grad"], [cpu])
    session = onnxruntime.InferenceSession(built(linear()).get_gradient_model())
    feeds, fetches = ["x", "w", "z"], ["x_grad"]
    with pytest.raises(steep.DataError, match="CPU"):
        TrainingAgent(session, feeds, [cuda], fetches, [cpu])
    with pytest.raises(steep.DataError, match="every input"):
        TrainingAgent(session, ["x"], [cpu], fetches, [cpu])
    with pytest.raises(steep.DataError, match="y_grad"):
        TrainingAgent(session, feeds, [cpu], ["y_grad"], [cpu])


@pytest.mark.parametrize("as_outputs", [False, True])
def test_gradient_graphs(as_outputs, tmp_path):
    from onnxruntime.capi._pybind_state import GradientGraphBuilder, GradientGraphConfiguration

    total = helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)
    model = linear([total], [value("loss", [])])
    options = GradientGraphConfiguration()
    options.set_gradients_as_graph_outputs = as_outputs
    builder = GradientGraphBuilder(
        model.SerializeToString(), {"loss"}, {"w", "z"}, "loss", options=options
    )
    with pytest.raises(steep.DataError, match="build"):
        builder.get_model()
    builder.build()
    made = onnx.load_model_from_string(builder.get_model())
    builder.save(str(tmp_path / "gradients.onnx"))
    assert (tmp_path / "gradients.onnx").read_bytes() == builder.get_model()
    if not as_outputs:
        assert [o.name for o in made.graph.output] == ["loss"]
        known = {v.name: v for v in made.graph.value_info}
        made.graph.output.extend(known[name] for name in ("w_grad", "z_grad"))
    onnx.checker.check_model(made, full_check=True)
    session = steep.InferenceSession(made)
    loss, dw, dz = session.run(["loss", "w_grad", "z_grad"], {"x": X})
    assert loss == 15
    np.testing.assert_allclose(dw, [[3], [5], [7]])
    np.testing.assert_allclose(dz, [2])
    with pytest.raises(steep.DataError, match="Only one output"):
        GradientGraphBuilder(model.SerializeToString(), {"loss", "y"}, {"w"}, "loss")


def test_settings_that_change_nothing_are_said(caplog):
    from onnxruntime.capi import _pybind_state as state

    from steep.compat import notices

    notices.forget()
    config = state.TrainingGraphTransformerConfiguration()
    config.gelu_recompute = False
    assert not caplog.records
    config.gelu_recompute = True
    config.propagate_cast_ops_config.strategy = state.PropagateCastOpsStrategy.NONE
    state.set_arena_extend_strategy(state.ArenaExtendStrategy.kSameAsRequested)
    state.set_cuda_device_id(0)
    said = " ".join(r.getMessage() for r in caplog.records)
    for name in ("gelu_recompute", "strategy", "set_arena_extend_strategy", "set_cuda_device_id"):
        assert name in said
    assert state.get_all_providers() == state.get_available_providers()
    assert state.TrainingGraphTransformerConfiguration().propagate_cast_ops_config.level == 1


def test_values_by_name():
    from onnxruntime.capi._pybind_state import OrtValue, OrtValueCache

    cache = OrtValueCache()
    cache.insert("x", OrtValue.ortvalue_from_numpy(X))
    assert list(cache.keys()) == ["x"] and cache.count("x") == 1 and cache.count("y") == 0
    cache.remove("x")
    assert not cache

"""onnxruntime's sessions with bindings, values and devices."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep
from steep import compat

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def served():
    compat.install()
    yield
    compat.uninstall()


def doubling() -> bytes:
    """y = x * 2 and its sum."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    made = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [made("x", TensorProto.FLOAT, ["n", 3])],
        [made("y", TensorProto.FLOAT, ["n", 3]), made("total", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.array(2, np.float32), "two")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def session(**arguments):
    import onnxruntime

    return onnxruntime.InferenceSession(doubling(), **arguments)


def test_providers_and_their_options():
    made = session(providers=["CPUExecutionProvider"], provider_options=[{}])
    assert made.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(steep.DataError, match="options"):
        session(providers=["CPUExecutionProvider"], provider_options=[{}, {}])


def test_arrays_and_values_are_bound():
    from onnxruntime import OrtValue

    made = session()
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("total")
    target = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.bind_ortvalue_output("y", target)
    made.run_with_iobinding(binding)
    total, y = binding.copy_outputs_to_cpu()
    assert total == 30
    np.testing.assert_array_equal(y, 2 * X)
    np.testing.assert_array_equal(target.numpy(), 2 * X)
    binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(X + 1))
    made.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[1].numpy(), 2 * X + 2)
    binding.bind_cpu_input("x", X[:1])
    with pytest.raises(steep.ShapeError):
        made.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    with pytest.raises(steep.DataError, match="missing"):
        made.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    with pytest.raises(steep.DataError, match="No output is bound"):
        made.run_with_iobinding(binding)
    with pytest.raises(steep.DataError, match="no such output"):
        binding.bind_output("z")


@pytest.mark.parametrize("by_name", [True, False])
def test_memory_is_bound(by_name):
    from onnxruntime import OrtDevice
    from onnxruntime.capi._pybind_state import SessionIOBinding

    x, y = X.copy(), np.zeros((2, 3), np.float32)
    place = ("cpu", 0) if by_name else (OrtDevice.make("cpu"),)
    made = session()
    binding = SessionIOBinding(made._sess)
    binding.bind_input("x", *place, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", *place, TensorProto.FLOAT, list(y.shape), y.ctypes.data)
    made._sess.run_with_iobinding(binding, None)
    np.testing.assert_array_equal(y, 2 * X)
    with pytest.raises(steep.DataError, match="needs all of"):
        binding.bind_input("x", *place, np.float32, None, x.ctypes.data)
    away = ("cuda", 0) if by_name else (OrtDevice.make("cuda"),)
    with pytest.raises(steep.DataError, match="CPU"):
        binding.bind_input("x", *away, np.float32, x.shape, x.ctypes.data)
    with pytest.raises(steep.DataError, match="CPU"):
        binding.bind_output("y", *away)


def test_values_in_and_out():
    from onnxruntime import OrtValue

    (y,) = session().run_with_ort_values(["y"], {"x": OrtValue.ortvalue_from_numpy(X)})
    np.testing.assert_array_equal(y.numpy(), 2 * X)


def test_options_of_a_run(caplog):
    from onnxruntime import RunOptions

    from steep.compat import notices

    notices.forget()
    options = RunOptions()
    options.add_run_config_entry("key", "value")
    assert options.get_run_config_entry("key") == "value"
    assert "key" in caplog.text
    assert session().run(["total"], {"x": X}, options)[0] == 30
    options.training_mode = True
    assert session().run(["total"], {"x": X}, options)[0] == 30  # computes the same in training
    options.terminate = True
    with pytest.raises(steep.DataError, match="terminate"):
        session().run(None, {"x": X}, options)


def test_options_of_a_session(caplog):
    from onnxruntime import ExecutionMode, ExecutionOrder, InferenceSession, SessionOptions

    from steep.compat import notices

    notices.forget()
    options = SessionOptions()
    assert isinstance(options, steep.SessionOptions) and not options.has_providers()
    options.execution_order = ExecutionOrder.DEFAULT
    assert not caplog.text  # a default is not worth a message
    options.execution_mode = ExecutionMode.ORT_PARALLEL
    options.enable_mem_pattern = False
    options.log_severity_level = -1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    for name in ("execution_mode", "enable_mem_pattern", "allow_spinning"):
        assert name in caplog.text
    assert InferenceSession(doubling(), options).run(["total"], {"x": X})[0] == 30
    with pytest.raises(AttributeError):
        options.intra_op_threads = 1
    with pytest.raises(steep.ModelError, match=r"steep\.register_op"):
        options.register_custom_ops_library("libops.so")
    for refused in (options.add_initializer, options.add_external_initializers):
        with pytest.raises(steep.ModelError, match="the model's initializers"):
            refused("w", X)


def test_options_of_a_run_have_only_their_names():
    from onnxruntime import RunOptions

    with pytest.raises(AttributeError):
        RunOptions().log_level = 0


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_training_mode_of_a_model_that_differs_in_it(kind, tmp_path):
    from onnxruntime import InferenceSession, RunOptions

    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Dropout(x)}'
    model = onnx.parser.parse_model(text).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(model)
    made = InferenceSession(model if kind == "bytes" else str(tmp_path / "model.onnx"))
    options = RunOptions()
    feed = {"x": np.ones(3, np.float32)}
    np.testing.assert_array_equal(made.run(None, feed, options)[0], feed["x"])
    options.training_mode = True
    with pytest.raises(steep.DataError, match="GradientSession"):
        made.run(None, feed, options)


def test_the_two_classes_of_values():
    from onnxruntime import OrtValue
    from onnxruntime.capi import _pybind_state as state

    cpu = state.OrtDevice(state.OrtDevice.cpu(), state.OrtMemType.DEFAULT, 0)
    inner, outer = state.OrtValue.ortvalue_from_numpy(X, cpu), OrtValue.ortvalue_from_numpy(X)
    assert (inner.device_name(), outer.device_name()) == ("Cpu", "cpu")
    assert isinstance(outer, state.OrtValue) and not isinstance(inner, OrtValue)
    # code of users goes from the outer value to the inner one as long as there is one
    assert type(outer._ortvalue) is state.OrtValue and not hasattr(inner, "_ortvalue")
    assert outer._ortvalue.data_ptr() == outer.data_ptr()
    made = session()
    for binding in (made.io_binding(), state.SessionIOBinding(made)):
        binding.bind_ortvalue_input("x", inner)
        binding.bind_ortvalue_output("y", inner if binding is not made else outer)
        made.run_with_iobinding(binding)
        (y,) = binding.get_outputs()
        assert y.data_ptr() == inner.data_ptr()
        assert y.device_name() == ("cpu" if isinstance(y, OrtValue) else "Cpu")
    assert isinstance(made.run_with_ort_values(["y"], {"x": inner})[0], OrtValue)


def test_devices():
    from onnxruntime import OrtDevice

    cpu = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
    assert cpu == OrtDevice.make("cpu", 0) and len({cpu, OrtDevice.make("CPU")}) == 1
    assert (cpu.device_type(), cpu.mem_type(), cpu.device_id()) == (0, 0, 0)
    assert OrtDevice.make("cuda", 1) != cpu and "cuda, 1" in repr(OrtDevice.make("cuda", 1))
    with pytest.raises(steep.DataError, match="abacus"):
        OrtDevice.make("abacus")


def test_a_list_of_values():
    from onnxruntime import OrtValue
    from onnxruntime.capi._pybind_state import OrtDevice, OrtValueVector

    values = OrtValueVector()
    values.reserve(3)
    values.push_back(OrtValue.ortvalue_from_numpy(X))
    values.push_back(steep.Tensor(np.arange(3)).__dlpack__())
    values.push_back(steep.Tensor(np.array([1, 0], np.uint8)).__dlpack__(), True)
    values.push_back_batch([np.ones(2)], [0], [np.float64], [[2]], [OrtDevice.make("cpu")])
    values.shrink_to_fit()
    assert len(values) == 4 and values[2].numpy().tolist() == [True, False]
    assert values.bool_tensor_indices() == [2]
    assert values.element_type_at(1) == TensorProto.INT64
    np.testing.assert_array_equal(steep.Tensor(values.dlpack_at(0)).numpy(), X)
    shapes = values.to_dlpacks(lambda capsule: steep.Tensor(capsule).shape)
    assert shapes == [(2, 3), (3,), (2,), (2,)]
    with pytest.raises(steep.DataError):
        values.push_back("text")
    shared = OrtValue.from_dlpack(values[0].to_dlpack())
    assert shared.data_ptr() == values[0].data_ptr()

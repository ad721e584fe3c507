"""Cast between all element types, against NumPy and ml_dtypes; packed data in model files."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep
from steep import _steep

EIGHT_BITS = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
NARROW_FLOATS = (*EIGHT_BITS, "FLOAT6E2M3", "FLOAT6E3M2", "FLOAT4E2M1")
SMALL_INTEGERS = ("UINT4", "INT4", "UINT2", "INT2")
INTEGERS = ("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64")
WIDE = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", *INTEGERS, "BOOL")
EVERY = (*NARROW_FLOATS, "FLOAT8E8M0", *SMALL_INTEGERS, *WIDE)


def numpy_type(name):
    return helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name))


def cast(x, to, **attrs):
    return _steep.evaluate_node("Cast", [x], {"to": TensorProto.DataType.Value(to), **attrs}, 1)[0]


def same_bits(ours, theirs):
    assert ours.dtype == theirs.dtype
    bits = f"u{ours.itemsize}"
    np.testing.assert_array_equal(ours.view(bits), theirs.view(bits))


def interesting():
    """Every number of eight bits or less, what lies between two of them, ties, and far outside."""
    exact = np.unique(
        np.concatenate(
            [
                np.arange(256, dtype=np.uint8).view(numpy_type(n)).astype(np.float64)
                for n in EIGHT_BITS
            ]
        )
    )
    exact = exact[np.isfinite(exact)]
    between = (exact[1:] + exact[:-1]) / 2
    return np.concatenate(
        [
            exact,
            between,
            np.nextafter(between, np.inf),
            np.nextafter(between, -np.inf),
            [np.inf, -np.inf, np.nan, 1e6, -1e6, 1e-30, -1e-30, 0.0, -0.0],
        ]
    )


@pytest.mark.parametrize("source", ["DOUBLE", "FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("to", NARROW_FLOATS)
def test_rounding_is_to_nearest_even(source, to):
    with np.errstate(all="ignore"):
        x = (
            interesting().astype(np.float32).astype(numpy_type(source))
        )  # ml_dtypes' doubles pass there
        wanted = x.astype(numpy_type(to))
    same_bits(cast(x, to, saturate=0), wanted)


@pytest.mark.parametrize("to", EIGHT_BITS)
def test_saturation(to):
    x = interesting().astype(np.float32)
    largest = float(ml_dtypes.finfo(numpy_type(to)).max)
    with np.errstate(all="ignore"):
        wanted = np.clip(x, -largest, largest).astype(numpy_type(to))
    same_bits(cast(x, to), wanted)


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two(mode):
    x = np.float32([0.124, 0.25, 0.3, 0.375, 0.5, 1.0, 1.1, 1.5, 1.9, 2.0, 3.0, 3e38, 1e-38])
    wanted = numpy_helper.to_float8e8m0(x, True, mode)
    same_bits(cast(x, "FLOAT8E8M0", round_mode=mode), wanted)
    special = cast(np.float32([np.nan, np.inf, 0.0]), "FLOAT8E8M0").view(np.uint8)
    np.testing.assert_array_equal(special, [255, 254, 0])
    special = cast(np.float32([np.nan, np.inf, 0.0]), "FLOAT8E8M0", saturate=0).view(np.uint8)
    np.testing.assert_array_equal(special, [255, 255, 255])


@pytest.mark.parametrize("source", [*NARROW_FLOATS, "FLOAT8E8M0"])
@pytest.mark.parametrize("to", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16"])
def test_every_number_of_a_narrow_float(source, to):
    bits = {"FLOAT4E2M1": 4, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}.get(source, 8)
    x = np.arange(1 << bits, dtype=np.uint8).view(numpy_type(source))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            cast(x, to).astype(np.float64), x.astype(numpy_type(to)).astype(np.float64)
        )


@pytest.mark.parametrize("to", SMALL_INTEGERS)
@pytest.mark.parametrize("source", ["FLOAT", "FLOAT16", "DOUBLE", "INT8", "INT32", "INT64"])
def test_small_integers_keep_the_low_bits(source, to):
    x = np.arange(-20, 20).astype(numpy_type(source))
    np.testing.assert_array_equal(
        cast(x, to).astype(np.int64), x.astype(numpy_type(to)).astype(np.int64)
    )


@pytest.mark.parametrize("source", EVERY)
def test_small_numbers_survive_between_all_types(source):
    for to in EVERY:
        x = np.array([0, 1, 1, 0], np.float32)
        if "FLOAT8E8M0" in (source, to):
            x = np.ones(4, np.float32)
        y = cast(x.astype(numpy_type(source)), to)
        assert y.dtype == numpy_type(to)
        np.testing.assert_array_equal(y.astype(np.float32), x, err_msg=f"to {to}")


def test_doubles_are_rounded_once():
    halfway = 1 + 2**-11 + 2**-40  # to float16 the next number up, to float32 a tie first
    assert float(cast(np.float64([halfway]), "FLOAT16")[0]) == 1 + 2**-10
    assert float(cast(np.float64([1 + 2**-8 + 2**-40]), "BFLOAT16")[0]) == 1 + 2**-7


@pytest.mark.parametrize("name", [*NARROW_FLOATS, "FLOAT8E8M0", *SMALL_INTEGERS])
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_data_in_a_file(name, raw, count):
    number = TensorProto.DataType.Value(name)
    bits = numpy_type(name)
    low = 1 << (ml_dtypes.iinfo(bits).bits if name in SMALL_INTEGERS else 3)
    values = (np.arange(count, dtype=np.uint8) * 3 % low).view(bits)
    tensor = numpy_helper.from_array(values, "w")
    if not raw:
        tensor = helper.make_tensor("w", number, [count], values.astype(np.float32).tolist())
        values = numpy_helper.to_array(tensor)
    node = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
    add = helper.make_node("Add", ["x", "y"], ["z"])
    inout = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [count]) for n in "xz"]
    graph = helper.make_graph([node, add], "g", inout[:1], inout[1:], [tensor])
    imports = [helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    model = helper.make_model(graph, opset_imports=imports)
    program = _steep.ModuleProgram(model.SerializeToString(), ["x"], [])
    outputs, *_ = program.forward([np.zeros(count, np.float32)], False)
    np.testing.assert_array_equal(np.asarray(steep.Tensor(outputs[0])), values.astype(np.float32))


@pytest.mark.parametrize("name", [*NARROW_FLOATS, "FLOAT8E8M0", *SMALL_INTEGERS])
def test_arrays_cross_without_a_copy(name):
    x = np.ones((2, 3), numpy_type(name))
    t = steep.Tensor(x)
    assert (t.dtype, t.shape, t.nbytes) == (x.dtype.name, (2, 3), 6)
    back = t.numpy()
    assert back.dtype == x.dtype
    assert np.shares_memory(back, x)
    if name in (*EIGHT_BITS, "FLOAT8E8M0"):
        assert t.__dlpack__() is not None
    else:
        with pytest.raises(steep.DataError, match="DLPack"):
            t.__dlpack__()

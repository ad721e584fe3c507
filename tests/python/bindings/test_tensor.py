"""Data crosses the boundary without copies, whole, and stays alive for as long as it is used."""

import array
import gc

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import steep

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMPY_TYPES = ["bool", *INTEGERS, "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_numpy_both_ways_without_copy(dtype, shape):
    source = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    t = steep.Tensor(source)
    assert (t.shape, t.dtype) == (shape, dtype)
    back = t.numpy()
    assert back.dtype == source.dtype
    np.testing.assert_array_equal(back, source)
    np.testing.assert_array_equal(np.from_dlpack(t), source)
    if source.size:
        assert back.ctypes.data == t.data_ptr == source.ctypes.data


def test_read_only_arrays_are_copied():
    source = np.arange(4.0)
    source.flags.writeable = False
    view = steep.Tensor(source).numpy()  # which can be written into
    view[:] = 7
    np.testing.assert_array_equal(source, np.arange(4.0))


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[:, ::2],
        lambda a: a[::-1],
        lambda a: np.broadcast_to(a[0], (5, 6)),
        lambda a: a[:, :, None].transpose(2, 1, 0),
        np.asfortranarray,
    ],
)
def test_strided_arrays_are_copied_whole(view):
    source = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    np.testing.assert_array_equal(steep.Tensor(source).numpy(), source)


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    t = steep.Tensor(source)
    assert t.dtype == "bfloat16"
    assert t.numpy().dtype == source.dtype
    np.testing.assert_array_equal(t.numpy().astype(np.float32), source.astype(np.float32))
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(t)


def test_masked_arrays():
    source = np.ma.masked_equal(np.arange(3.0), 1)
    with pytest.raises(steep.DataError, match="masked elements"):
        steep.Tensor(source)
    np.testing.assert_array_equal(steep.Tensor(source.filled(7)).numpy(), [0, 7, 2])
    whole = np.ma.masked_equal(np.arange(3.0), 9)
    np.testing.assert_array_equal(steep.Tensor(whole).numpy(), np.arange(3.0))


def test_negated_tensors_of_pytorch():
    """PyTorch negates their numbers when it reads them."""
    torch = pytest.importorskip("torch")
    source = torch.complex(torch.zeros(3), torch.arange(3.0)).conj().imag
    assert source.is_neg()
    np.testing.assert_array_equal(steep.Tensor(source).numpy(), [-0.0, -1, -2])
    with pytest.raises(steep.DataError, match="negates"):
        steep.TrainingSession(vector(), loss="mse", weights={"w": source})
    session = steep.TrainingSession(vector(), loss="mse")
    session.set_weights({"w": source})
    np.testing.assert_array_equal(session.weights()["w"].numpy(), [-0.0, -1, -2])


def vector():
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[n, 3] x) => (float[n, 3] y) { y = Mul(x, w) }"""
    )
    made.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    return made


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda torch: torch.eye(3).to_sparse(), "torch.strided"),
        (lambda torch: torch.empty(3, device="meta"), "meta"),
        (lambda torch: torch.ones(3, dtype=torch.complex64).conj(), "conjugate"),
        (lambda torch: torch.nn.parameter.UninitializedParameter(), "uninitialized"),
    ],
    ids=["sparse", "meta", "conjugate", "uninitialized"],
)
def test_tensors_that_pytorch_does_not_hand_out(make, text):
    with pytest.raises(steep.DataError, match=text):
        steep.Tensor(make(pytest.importorskip("torch")))


def test_bytes_outlive_their_array():
    t = steep.Tensor(np.full(1000, 7.0))
    gc.collect()
    np.full(1000, 8.0)
    assert t.numpy().sum() == 7000
    view = t.numpy()
    del t
    gc.collect()
    np.full(1000, 9.0)
    assert view.sum() == 7000


def test_unused_capsule_frees_its_tensor():
    owner = np.ones(3)
    t = steep.Tensor(owner)
    before = t.__dlpack__(), t.__dlpack__(max_version=(1, 0))
    del before
    assert steep.Tensor(t.__dlpack__()).data_ptr == owner.ctypes.data
    used = t.__dlpack__()
    steep.Tensor(used)
    with pytest.raises(steep.DataError, match="used before"):
        steep.Tensor(used)


def test_other_sources():
    assert steep.Tensor(array.array("i", [1, 2])).dtype == "int32"
    assert steep.Tensor(2.5).shape == ()
    assert float(steep.Tensor(2.5)) == 2.5
    assert steep.Tensor([[1, 2], [3, 4]]).shape == (2, 2)
    assert steep.Tensor(np.float32(1)).dtype == "float32"
    assert np.asarray(steep.Tensor([1, 2]), dtype=np.float32).dtype == np.float32


@pytest.mark.parametrize(
    "bad", [None, "text", object(), np.array(["a"]), np.array([1j]), np.array([object()]), {}]
)
def test_refused_with_a_typed_error(bad):
    with pytest.raises(steep.DataError) as e:
        steep.Tensor(bad)
    assert e.value.expected and e.value.received
    assert isinstance(e.value, ValueError)


class TestTorch:
    torch = pytest.importorskip("torch")

    @pytest.mark.parametrize(
        "dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    )
    def test_both_ways_without_copy(self, dtype):
        torch = self.torch
        source = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
        t = steep.Tensor(source)
        assert (t.shape, t.dtype, t.data_ptr) == ((2, 3), dtype, source.data_ptr())
        back = torch.from_dlpack(t)
        assert back.data_ptr() == source.data_ptr()
        assert torch.equal(back, source)

    def test_parameters_and_views(self):
        p = self.torch.nn.Parameter(self.torch.randn(4, 6))
        assert steep.Tensor(p).data_ptr == p.data_ptr()
        assert self.torch.equal(self.torch.from_dlpack(steep.Tensor(p.t())), p.t())
        row = p[1]
        assert steep.Tensor(row).data_ptr == row.data_ptr()

    def test_lifetime(self):
        t = steep.Tensor(self.torch.full((1000,), 3.0))
        gc.collect()
        self.torch.full((1000,), 4.0)
        out = self.torch.from_dlpack(t)
        del t
        gc.collect()
        self.torch.full((1000,), 5.0)
        assert out.sum() == 3000

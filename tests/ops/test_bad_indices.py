"""Indices, divisors and lengths that do not exist give a typed error, from constants and at run."""

from __future__ import annotations

import numpy as np
import pytest
from nodes import evaluate
from rows.row import Row

import steep
from steep import _steep

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LOWEST = np.iinfo(np.int64).min
HIGHEST = np.iinfo(np.int64).max
OUTSIDE = [3, -4, LOWEST, HIGHEST, 2**31, -(2**31) - 1]


def run(op, inputs, outputs=1, **attrs):
    return _steep.evaluate_node(op, inputs, attrs, outputs)


def refused(op, inputs, outputs=1, **attrs):
    with pytest.raises(steep.Error) as error:
        run(op, inputs, outputs, **attrs)
    assert error.value.received or error.value.expected


def i64(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("bad", OUTSIDE)
class TestIndices:
    def test_gather(self, bad):
        refused("Gather", [X, i64(0, bad)], axis=0)

    def test_gather_elements(self, bad):
        refused("GatherElements", [X, i64([0, 0, 0, bad])], axis=0)

    def test_gather_nd(self, bad):
        refused("GatherND", [X, i64([0], [bad])])

    @pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
    def test_scatters(self, bad, reduction):
        row = np.ones((1, 4), np.float32)
        refused("ScatterElements", [X, i64([0, 0, 0, bad]), row], axis=0, reduction=reduction)
        refused("ScatterND", [X, i64([bad]), row], reduction=reduction)

    def test_gather_grad(self, bad):
        refused("steep.GatherGrad", [X, i64(0, 1, bad), i64(3, 4)], axis=0)

    def test_axes(self, bad):
        refused("CumSum", [X, np.array(bad)])
        refused("CumProd", [X, np.array(bad)])
        refused("DFT", [X[..., None], None, np.array(bad)])


@pytest.mark.parametrize("bad", [4, 5, -1, LOWEST, HIGHEST])
def test_lengths(bad):
    refused("ReverseSequence", [X, i64(1, 1, 1, bad)])


@pytest.mark.parametrize("first", [2, -1, LOWEST + 4, HIGHEST - 4])
def test_write_positions(first):
    cache, update = np.zeros((1, 3, 2), np.float32), np.ones((1, 2, 2), np.float32)
    if first == -1:
        return  # counts from the end, as in ScatterElements
    refused("TensorScatter", [cache, update, i64(first)])


@pytest.mark.parametrize("bad", [4, -1, LOWEST, HIGHEST])
def test_numbers_of_elements(bad):
    refused("TopK", [X, i64(bad)], 2, axis=0)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_division_by_zero(op, dtype):
    refused(op, [np.array([5, 6], dtype), np.array([1, 0], dtype)])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_quotients_that_do_not_exist(dtype):
    refused("Div", [np.array([np.iinfo(dtype).min], dtype), np.array([-1], dtype)])
    lowest = np.array([np.iinfo(dtype).min], dtype)
    np.testing.assert_array_equal(run("Mod", [lowest, np.array([-1], dtype)])[0], [0])


@pytest.mark.parametrize(
    ("shape", "target", "wanted"),
    [
        ((0, 3, 8), [0, 0, 2, -1], (0, 3, 2, 4)),
        ((2, 0, 8), [2, 0, 2, -1], (2, 0, 2, 4)),
        ((0, 0, 8), [0, 0, -1], (0, 0, 8)),
        ((2, 0, 2, 4), [2, 0, -1], (2, 0, 8)),
        ((2, 0, 8), [2, 0, -1, 1], (2, 0, 8, 1)),
        ((0, 8), [0, -1, 0], None),  # a third axis to copy
        ((2, 3, 1, 0, 4), [2, 3, 0, 4], (2, 3, 0, 4)),
        ((2, 0), [3, 0], (3, 0)),
        ((2, 0), [-1, 3], (0, 3)),
        ((0, 7), [0, 2, -1], None),
        ((2, 0), [-1, 0], None),
        ((0, 8), [0, -1, -1], None),
        ((0, 8), [0, 2, -2], None),
        ((0, 8), [2, 4], None),
        ((2, 4), [0, 2, 2, 0], None),
    ],
)
def test_reshapes_of_nothing(shape, target, wanted):
    inputs = [np.zeros(shape, np.float32), i64(*target)]
    if wanted is None:
        refused("Reshape", inputs)
    else:
        assert run("Reshape", inputs)[0].shape == wanted


def test_one_hot_of_a_scalar():
    refused("OneHot", [i64(1)[0], i64(3)[0], np.array([0, 1], np.float32)])


def test_a_bank_of_no_filters():
    refused("MelWeightMatrix", [i64(0)[0], i64(8)[0], i64(100)[0], np.float32(0), np.float32(40)])


def test_features_of_a_scalar():
    pool = {"ngram_counts": [0], "ngram_indexes": [0], "pool_int64s": [3], "mode": "TF"}
    lengths = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    refused("TfIdfVectorizer", [np.array(3)], **pool, **lengths)


def test_duplicates_add_up_and_the_last_of_them_wins():
    y = run("ScatterND", [X, i64([1], [1]), np.ones((2, 4), np.float32)], reduction="add")[0]
    np.testing.assert_array_equal(y[1], X[1] + 2)
    two = np.array([[1.0], [2.0]], np.float32)
    y = run("ScatterElements", [X, i64([0], [0]), two], axis=0)[0]
    assert y[0, 0] == 2.0


def test_a_filter_outside_the_spectrum():
    refused("MelWeightMatrix", [i64(4)[0], i64(8)[0], i64(100)[0], np.float32(0), np.float32(4000)])


def taken_apart(op, *inputs, outputs=1, **attrs):
    """An operator without a kernel of its own is refused before or while it runs, never later."""
    row = Row(op, tuple(inputs), attrs, outputs)
    with pytest.raises(steep.Error) as error:
        evaluate(row, list(inputs))
    assert error.value.received or error.value.expected


CUBE = np.ones((2, 3, 8), np.float32)


@pytest.mark.parametrize("bad", [5, -6, LOWEST, HIGHEST])
def test_positions_of_a_rotary_embedding(bad):
    cache = np.ones((5, 2), np.float32)
    places = i64([0, 1, 2], [0, 0, bad])
    taken_apart("RotaryEmbedding", CUBE, cache, cache, places, num_heads=2)
    taken_apart("com.microsoft.RotaryEmbedding", CUBE, places, cache, cache)


@pytest.mark.parametrize("bad", [0, -1, 3, LOWEST, HIGHEST])
def test_numbers_of_heads(bad):
    cache = np.ones((2, 3, 2), np.float32)
    taken_apart("RotaryEmbedding", CUBE, cache, cache, num_heads=bad)
    taken_apart("Attention", CUBE, CUBE, CUBE, q_num_heads=bad, kv_num_heads=bad)
    taken_apart("Attention", CUBE, CUBE, CUBE, q_num_heads=2, kv_num_heads=bad)
    for heads in (
        {"q_num_heads": bad, "kv_num_heads": bad},
        {"q_num_heads": 2, "kv_num_heads": bad},
    ):
        rule = {"update_rule": "linear", **heads}
        taken_apart("LinearAttention", CUBE, CUBE, CUBE, outputs=2, **rule)
    taken_apart("com.microsoft.Attention", CUBE, np.ones((8, 24), np.float32), num_heads=bad)
    taken_apart("com.microsoft.MultiHeadAttention", CUBE, CUBE, CUBE, num_heads=bad)
    lengths, total = np.array([2, 2], np.int32), np.array(3, np.int32)
    for heads in ({"num_heads": bad, "kv_num_heads": bad}, {"num_heads": 2, "kv_num_heads": bad}):
        more = (CUBE, CUBE, None, None, lengths, total)
        taken_apart("com.microsoft.GroupQueryAttention", CUBE, *more, **heads)


@pytest.mark.parametrize("bad", [5, 9, 2**31 - 1])
def test_rows_of_a_cache_that_are_longer_than_it_is(bad):
    one, past = np.ones((1, 1, 8), np.float32), np.ones((1, 1, 4, 8), np.float32)
    lengths, total = np.array([bad], np.int32), np.array(max(5, min(bad, 10)) + 1, np.int32)
    heads = {"num_heads": 1, "kv_num_heads": 1}
    more = (one, one, past, past, lengths, total)
    taken_apart("com.microsoft.GroupQueryAttention", one, *more, **heads)


@pytest.mark.parametrize("bad", [0, -1, 3, LOWEST, HIGHEST])
def test_numbers_of_groups_of_images(bad):
    image, two = np.ones((1, 2, 2, 2), np.float32), np.ones(2, np.float32)
    taken_apart("com.microsoft.GroupNorm", image, two, two, groups=bad, activation=0)


@pytest.mark.parametrize("bad", [0, -1, 9, LOWEST, HIGHEST])
def test_windows_that_do_not_fit(bad):
    if bad != 9:  # PyTorch refuses a window longer than the axis, too; here there are none
        taken_apart("com.microsoft.UnfoldTensor", X, size=bad)
    taken_apart("com.microsoft.UnfoldTensor", X, size=1, dim=bad if bad != 0 and bad != -1 else 7)
    taken_apart(
        "com.microsoft.Irfft", np.ones((3, 2), np.float32), signal_ndim=bad if abs(bad) > 3 else 4
    )


def test_matrices_without_an_inverse():
    taken_apart("com.microsoft.Inverse", np.ones((2, 2), np.float32))


@pytest.mark.parametrize("bad", [-1, LOWEST, HIGHEST])
def test_sizes_to_crop_to(bad):
    taken_apart("CenterCropPad", X, i64(2, bad))


@pytest.mark.parametrize("bad", [3, -4, LOWEST, HIGHEST])
def test_axes_of_normalisations(bad):
    taken_apart("RMSNormalization", CUBE, np.ones(8, np.float32), axis=bad)
    taken_apart("MeanVarianceNormalization", CUBE, axes=[bad])
    taken_apart("Hardmax", CUBE, axis=bad)
    taken_apart("CenterCropPad", CUBE, i64(2), axes=[bad])


NO_PIXELS = np.zeros((1, 2, 0, 3), np.float32)


def test_the_largest_of_nothing():
    taken_apart("GlobalMaxPool", NO_PIXELS)


def test_images_without_pixels():
    refused("Resize", [NO_PIXELS, None, None, i64(1, 2, 4, 3)])
    refused(
        "steep.ResizeGrad",
        [np.ones((1, 2, 4, 3), np.float32), i64(1, 2, 0, 3), None, None, i64(1, 2, 4, 3)],
    )
    refused("GridSample", [NO_PIXELS, np.zeros((1, 1, 1, 2), np.float32)])
    regions = np.zeros((1, 5), np.float32)
    refused("MaxRoiPool", [NO_PIXELS, regions], pooled_shape=[1, 1])
    refused("RoiAlign", [NO_PIXELS, regions[:, 1:], i64(0)])


IMAGES = np.ones((2, 1, 3, 3), np.float32)


@pytest.mark.parametrize("bad", [2, -1, LOWEST, HIGHEST, np.nan, np.inf])
def test_images_of_regions(bad):
    refused("MaxRoiPool", [IMAGES, np.array([[bad, 0, 0, 1, 1]], np.float32)], pooled_shape=[1, 1])
    if isinstance(bad, int):
        refused("RoiAlign", [IMAGES, np.zeros((1, 4), np.float32), i64(bad)])
    refused("RoiAlign", [IMAGES[:0], np.zeros((1, 4), np.float32), i64(0)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_sides_of_regions(bad):
    for place in range(4):
        sides = np.zeros(4, np.float32)
        sides[place] = bad
        y = run("MaxRoiPool", [IMAGES, np.array([[0, *sides]], np.float32)], pooled_shape=[2, 2])
        assert np.isin(y[0], [0, 1]).all()
        y = run("RoiAlign", [IMAGES, sides[None], i64(0)], mode="max")
        assert np.isfinite(y[0]).all()


def test_numbers_of_groups():
    x = np.ones((1, 6, 2), np.float32)
    for groups in (4, 0, -1, LOWEST, HIGHEST):  # 4 divides the elements, but not the channels
        taken_apart("GroupNormalization", x, x[0, :, 0], x[0, :, 0], num_groups=groups)


@pytest.mark.parametrize("bad", [4, -1, -5, LOWEST, HIGHEST])
def test_labels(bad):
    labels = i64(0, 1, bad)
    refused("steep.SoftmaxCrossEntropy", [X, labels], 2)
    taken_apart("SoftmaxCrossEntropyLoss", X, labels)
    taken_apart("NegativeLogLikelihoodLoss", X, labels)


@pytest.mark.parametrize("bad", [16, -1, LOWEST, HIGHEST])
def test_places_of_an_unpooling(bad):
    images = np.ones((1, 1, 2, 2), np.float32)
    places = i64(0, 1, 2, bad).reshape(1, 1, 2, 2)
    taken_apart("MaxUnpool", images, places, kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("bad", [HIGHEST, 2**61, 2**46])
def test_results_larger_than_any_memory(bad):
    one = np.ones((1, 1), np.float32)
    taken_apart("Tile", one, i64(bad, 1))
    taken_apart("Expand", one, i64(bad, 1))
    taken_apart("ConstantOfShape", i64(bad))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_steps_of_nothing(dtype):
    refused("Range", [np.array(0, dtype), np.array(3, dtype), np.array(0, dtype)])


def f32(*values):
    return np.array(values, np.float32)


# By operator: operands that fit, and which of them are read as a number.
NUMBERS = {
    "Clip": ([X, f32(0)[0], f32(1)[0]], [1, 2]),
    "CumProd": ([X, i64(1)[0]], [1]),
    "CumSum": ([X, i64(1)[0]], [1]),
    "DFT": ([X[..., None], i64(4)[0], i64(1)[0]], [1, 2]),
    "MelWeightMatrix": ([*(i64(n)[0] for n in (4, 8, 100)), *f32(0, 40)], [0, 1, 2, 3, 4]),
    "NonMaxSuppression": (
        [np.zeros((1, 2, 4), np.float32), np.zeros((1, 1, 2), np.float32), i64(1)[0], *f32(0, 0)],
        [2, 3, 4],
    ),
    "OneHot": ([i64(0, 1), i64(3)[0], f32(0, 1)], [1]),
    "Pad": ([X, i64(1, 0, 0, 0), f32(2)[0]], [2]),
    "Range": ([i64(n)[0] for n in (0, 4, 1)], [0, 1, 2]),
    "STFT": ([np.ones((1, 16, 1), np.float32), i64(2)[0], None, i64(4)[0]], [1, 3]),
    "TopK": ([X, i64(1)], [1]),
    "Trilu": ([X, i64(1)[0]], [1]),
    "ConvInteger": (
        [np.ones((1, 1, 3, 3), np.uint8), np.ones((1, 1, 2, 2), np.uint8), np.uint8(1)],
        [2],
    ),
}
ANY_NUMBER = {"ConvInteger", "OneHot"}  # of whatever type
MORE_OUTPUTS = {"TopK": 2}


@pytest.mark.parametrize("op", NUMBERS)
def test_operands_that_are_read_as_a_number(op):
    operands, places = NUMBERS[op]
    operands = [None if x is None else np.asarray(x) for x in operands]
    outputs = MORE_OUTPUTS.get(op, 1)
    run(op, operands, outputs)
    for i in places:
        kind = operands[i].dtype
        for other in (np.zeros(0, kind), np.zeros((2, 0), kind), np.ones(2, kind)):
            refused(op, [*operands[:i], other, *operands[i + 1 :]], outputs)
        for dtype in () if op in ANY_NUMBER else (np.int8, np.uint16, np.uint64, bool, np.float64):
            wrong = operands[i].astype(dtype)
            refused(op, [*operands[:i], wrong, *operands[i + 1 :]], outputs)


@pytest.mark.parametrize(
    ("dtype", "start", "limit", "delta"),
    [
        (np.int32, -(2**31), 2**31 - 1, 2**30),
        (np.int64, -(2**63), 2**63 - 1, 2**62),
        (np.int32, 2**31 - 1, -(2**31), -(2**30)),
        (np.int64, 2**62 + 1, 2**62 + 4, 1),
        (np.int64, 2**63 - 3, 2**63 - 1, 1),
        (np.int64, 5, -(2**63), -(2**62)),
        (np.int16, -(2**15), 2**15 - 1, 2**14),
        (np.int64, 5, -5, 3),
    ],
)
def test_ranges_near_the_ends_of_integers(dtype, start, limit, delta):
    (found,) = run("Range", [np.array(v, dtype) for v in (start, limit, delta)])
    assert found.tolist() == list(range(start, limit, delta))


def test_axes_that_are_no_permutation():
    for perm in ([1], [0, 0], [0, 1, 2], [0, -1]):
        refused("Transpose", [X], perm=perm)


def test_a_condition_that_is_no_bool():
    refused("Where", [i64(1, 0), X[0, :2], X[1, :2]])
    refused("Not", [i64(1, 0)])
    refused("Compress", [X, i64(1, 0, 1)])

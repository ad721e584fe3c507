// Movement ops against element-by-element results.
#include <numeric>

#include "providers/cpu/strided_copy.h"
#include "runtime/packing.h"
#include "steep/error.h"
#include "tests/kernels/run_kernel.h"

namespace steep::test {
namespace {

/// 1, 2, …; small types wrap around.
template <typename T = float>
Tensor iota(const Dims& dims) {
  Tensor t = Tensor::empty(dtype_of<T>(), dims);
  std::iota(t.data<T>(), t.data<T>() + t.size(), T{1});
  return t;
}

Tensor ints(const std::vector<int64_t>& v) {
  const auto n = static_cast<int64_t>(v.size());
  return Tensor::from(v, {n});
}

/// x[index] for a row-major tensor.
template <typename T = float>
T at(const Tensor& x, const Dims& index) {
  int64_t offset = 0;
  for (size_t i = 0; i < index.size(); ++i) offset = offset * x.dims()[i] + index[i];
  return x.data<T>()[offset];
}

Dims unravel(int64_t i, const Dims& dims) {
  Dims index(dims.size());
  for (size_t a = dims.size(); a-- > 0;) {
    index[a] = i % dims[a];
    i /= dims[a];
  }
  return index;
}

template <typename T>
void check_transpose_of(const Dims& dims, const Ints& perm) {
  const Tensor x = iota<T>(dims);
  Dims out_dims;
  for (int64_t p : perm) out_dims.push_back(dims[static_cast<size_t>(p)]);
  const Tensor y = run_one("Transpose", {x}, {dtype_of<T>(), out_dims}, {{"perm", perm}});
  for (int64_t i = 0; i < y.size(); ++i) {
    const Dims index = unravel(i, out_dims);
    Dims source(dims.size());
    for (size_t a = 0; a < perm.size(); ++a) source[static_cast<size_t>(perm[a])] = index[a];
    ASSERT_EQ(y.data<T>()[i], at<T>(x, source)) << to_string(dims) << " by " << to_string(perm);
  }
}

void check_transpose(const Dims& dims, const Ints& perm) {
  check_transpose_of<float>(dims, perm);
  check_transpose_of<int16_t>(dims, perm);
}

TEST(Transpose, EveryPermutationOfFourAxes) {
  Ints perm = {0, 1, 2, 3};
  do {
    check_transpose({3, 5, 7, 6}, perm);
    check_transpose({2, 8, 1, 4}, perm);
  } while (std::next_permutation(perm.begin(), perm.end()));
}

TEST(Transpose, LargeMatricesInTiles) {
  check_transpose({67, 130}, {1, 0});
  check_transpose({512, 301}, {1, 0});
  check_transpose({2, 3, 97, 65}, {0, 1, 3, 2});
  check_transpose({4, 33, 6, 64}, {0, 2, 1, 3});
  check_transpose({3, 64, 128}, {0, 2, 1});
  check_transpose({40, 72}, {1, 0});
}

TEST(Transpose, ScalarEmptyAndDefaultPerm) {
  expect_close(run_one("Transpose", {Tensor::scalar(3.0F)}, {DType::f32, {}}), {3});
  EXPECT_EQ(run_one("Transpose", {iota({2, 0})}, {DType::f32, {0, 2}}).size(), 0);
  expect_close(run_one("Transpose", {iota({2, 3})}, {DType::f32, {3, 2}}), {1, 4, 2, 5, 3, 6});
}

TEST(Transpose, OtherElementSizes) {
  Tensor x = Tensor::from<double>({1, 2, 3, 4, 5, 6}, {2, 3});
  expect_close(run_one("Transpose", {x}, {DType::f64, {3, 2}}), {1, 4, 2, 5, 3, 6});
  Tensor bytes = Tensor::from<uint8_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  expect_close(run_one("Transpose", {bytes}, {DType::u8, {3, 2}}), {1, 4, 2, 5, 3, 6});
}

TEST(Transpose, RefusesBadPerm) {
  EXPECT_THROW(run_one("Transpose", {iota({2, 3})}, {DType::f32, {2, 3}}, {{"perm", Ints{0, 7}}}),
               ProviderError);
}

TEST(Slice, StepsNegativeAndHuge) {
  const Tensor x = iota({3, 4});
  expect_close(
      run_one("Slice", {x, ints({1}), ints({3}), ints({1}), ints({1})}, {DType::f32, {3, 2}}),
      {2, 3, 6, 7, 10, 11});
  expect_close(run_one("Slice", {x, ints({-1}), ints({INT64_MIN}), ints({0}), ints({-2})},
                       {DType::f32, {2, 4}}),
               {9, 10, 11, 12, 1, 2, 3, 4});
  expect_close(
      run_one("Slice", {x, ints({0, 0}), ints({INT64_MAX, INT64_MAX}), {}, ints({INT64_MAX, 3})},
              {DType::f32, {1, 2}}),
      {1, 4});
  EXPECT_EQ(run_one("Slice", {x, ints({2}), ints({1})}, {DType::f32, {0, 4}}).size(), 0);
  // A start before the first element is that element, as ONNX says and NumPy does not.
  expect_close(
      run_one("Slice", {x, ints({-9}), ints({-9}), ints({0}), ints({-1})}, {DType::f32, {1, 4}}),
      {1, 2, 3, 4});
  EXPECT_THROW(
      run_one("Slice", {x, ints({0}), ints({1}), ints({0}), ints({0})}, {DType::f32, {1, 4}}),
      ProviderError);
}

TEST(SliceGrad, WritesTheSliceIntoZeros) {
  const Tensor dy = iota({2, 2});
  const Tensor dx =
      run_one("steep.SliceGrad",
              {dy, ints({3, 4}), ints({2, 0}), ints({-5, 3}), ints({0, 1}), ints({-2, 2})},
              {DType::f32, {3, 4}});
  expect_close(dx, {3, 0, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0});
}

TEST(Concat, AlongEachAxis) {
  const Tensor a = iota({2, 2});
  const Tensor b = iota({2, 1});
  expect_close(run_one("Concat", {a, b}, {DType::f32, {2, 3}}, {{"axis", int64_t{-1}}}),
               {1, 2, 1, 3, 4, 2});
  expect_close(
      run_one("Concat", {a, iota({0, 2}), a}, {DType::f32, {4, 2}}, {{"axis", int64_t{0}}}),
      {1, 2, 3, 4, 1, 2, 3, 4});
}

TEST(Split, UnevenWithUnusedOutput) {
  const Tensor x = iota({2, 4});
  auto y = run_kernel("Split", {x, ints({1, 2, 1})},
                      {{DType::f32, {2, 1}}, {}, {DType::f32, {2, 1}}}, {{"axis", int64_t{1}}});
  expect_close(y[0], {1, 5});
  expect_close(y[2], {4, 8});
}

TEST(Expand, BroadcastsAndRepeats) {
  expect_close(run_one("Expand", {iota({2, 1}), ints({3, 1, 2})}, {DType::f32, {3, 2, 2}}),
               {1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2});
  expect_close(run_one("Expand", {Tensor::scalar(7.0F), ints({3})}, {DType::f32, {3}}), {7, 7, 7});
  expect_close(run_one("Tile", {iota({1, 2}), ints({2, 2})}, {DType::f32, {2, 4}}),
               {1, 2, 1, 2, 1, 2, 1, 2});
  EXPECT_EQ(run_one("Tile", {iota({1, 2}), ints({0, 2})}, {DType::f32, {0, 4}}).size(), 0);
}

TEST(Gather, NegativeAndHostileIndices) {
  const Tensor x = iota({3, 2});
  expect_close(run_one("Gather", {x, ints({-1, 0, -3})}, {DType::f32, {3, 2}}), {5, 6, 1, 2, 1, 2});
  const Tensor index = Tensor::from<int32_t>({1, 0}, {2});
  expect_close(run_one("Gather", {x, index}, {DType::f32, {3, 2}}, {{"axis", int64_t{1}}}),
               {2, 1, 4, 3, 6, 5});
  for (int64_t bad : {int64_t{3}, int64_t{-4}, INT64_MIN, INT64_MAX}) {
    EXPECT_THROW(run_one("Gather", {x, ints({0, bad})}, {DType::f32, {2, 2}}), DataError) << bad;
  }
  EXPECT_THROW(run_one("Gather", {iota({0, 2}), ints({0})}, {DType::f32, {1, 2}}), DataError);
  EXPECT_EQ(run_one("Gather", {x, ints({})}, {DType::f32, {0, 2}}).size(), 0);
}

TEST(Gather, ElementsAndTuples) {
  const Tensor x = iota({2, 3});
  const Tensor index = Tensor::from<int64_t>({2, -3, 1, 0}, {2, 2});
  expect_close(run_one("GatherElements", {x, index}, {DType::f32, {2, 2}}, {{"axis", int64_t{1}}}),
               {3, 1, 5, 4});
  const Tensor tuples = Tensor::from<int64_t>({0, -1, 1, 0}, {2, 2});
  expect_close(run_one("GatherND", {x, tuples}, {DType::f32, {2}}), {3, 4});
  const Tensor rows = Tensor::from<int64_t>({1}, {1, 1});
  expect_close(run_one("GatherND", {x, rows}, {DType::f32, {1, 3}}), {4, 5, 6});
  const Tensor batched = Tensor::from<int64_t>({2, 0}, {2, 1});
  expect_close(run_one("GatherND", {x, batched}, {DType::f32, {2}}, {{"batch_dims", int64_t{1}}}),
               {3, 4});
  const Tensor bad = Tensor::from<int64_t>({0, 3}, {1, 2});
  EXPECT_THROW(run_one("GatherND", {x, bad}, {DType::f32, {1}}), DataError);
}

TEST(Scatter, DuplicatesAndReductions) {
  const Tensor x = iota({4});
  const Tensor index = ints({0, 0, -1});
  const Tensor updates = Tensor::from<float>({10, 20, 30}, {3});
  const Out out{DType::f32, {4}};
  expect_close(run_one("ScatterElements", {x, index, updates}, out), {20, 2, 3, 30});
  expect_close(run_one("ScatterElements", {x, index, updates}, out, {{"reduction", "add"}}),
               {31, 2, 3, 34});
  expect_close(run_one("ScatterElements", {x, index, updates}, out, {{"reduction", "mul"}}),
               {200, 2, 3, 120});
  expect_close(run_one("ScatterElements", {x, index, updates}, out, {{"reduction", "min"}}),
               {1, 2, 3, 4});
  expect_close(run_one("ScatterElements", {x, index, updates}, out, {{"reduction", "max"}},
                       {.share = {{0, 0}}}),
               {20, 2, 3, 30});
  EXPECT_THROW(run_one("ScatterElements", {x, ints({0, 4, 0}), updates}, out), DataError);
}

TEST(Scatter, RowsByTuples) {
  const Tensor x = iota({3, 2});
  const Tensor index = Tensor::from<int64_t>({2, -3, 2}, {3, 1});
  const Tensor updates = iota({3, 2});
  expect_close(
      run_one("ScatterND", {x, index, updates}, {DType::f32, {3, 2}}, {{"reduction", "add"}}),
      {4, 6, 3, 4, 11, 14});
  const Tensor bad = Tensor::from<int64_t>({0, 3, 1}, {3, 1});
  EXPECT_THROW(run_one("ScatterND", {x, bad, updates}, {DType::f32, {3, 2}}), DataError);
}

TEST(Pad, Modes) {
  const Tensor x = iota({3});
  const Tensor pads = ints({2, 1});
  const Out out{DType::f32, {6}};
  expect_close(run_one("Pad", {x, pads}, out), {0, 0, 1, 2, 3, 0});
  expect_close(run_one("Pad", {x, pads, Tensor::scalar(9.0F)}, out), {9, 9, 1, 2, 3, 9});
  expect_close(run_one("Pad", {x, pads}, out, {{"mode", "reflect"}}), {3, 2, 1, 2, 3, 2});
  expect_close(run_one("Pad", {x, pads}, out, {{"mode", "edge"}}), {1, 1, 1, 2, 3, 3});
  expect_close(run_one("Pad", {x, pads}, out, {{"mode", "wrap"}}), {2, 3, 1, 2, 3, 1});
  expect_close(run_one("Pad", {iota({2, 3}), ints({-1, 1}), {}, ints({1})}, {DType::f32, {2, 3}}),
               {2, 3, 0, 5, 6, 0});
}

TEST(Fill, RangesAndDiagonals) {
  expect_close(run_one("Range", {Tensor::scalar(1.0F), Tensor::scalar(2.0F), Tensor::scalar(0.25F)},
                       {DType::f32, {4}}),
               {1, 1.25, 1.5, 1.75});
  expect_close(
      run_one("Range",
              {Tensor::scalar(int64_t{5}), Tensor::scalar(int64_t{0}), Tensor::scalar(int64_t{-2})},
              {DType::i64, {3}}),
      {5, 3, 1});
  expect_close(run_one("EyeLike", {iota({2, 3})}, {DType::f32, {2, 3}}, {{"k", int64_t{1}}}),
               {0, 1, 0, 0, 0, 1});
  expect_close(run_one("EyeLike", {iota({2, 3})}, {DType::i64, {2, 3}}, {{"k", int64_t{-1}}}),
               {0, 0, 0, 1, 0, 0});
  expect_close(run_one("EyeLike", {iota({2, 2})}, {DType::f32, {2, 2}}, {{"k", INT64_MIN}}),
               {0, 0, 0, 0});
  expect_close(run_one("EyeLike", {iota({2, 2})}, {DType::f32, {2, 2}}, {{"k", INT64_MAX}}),
               {0, 0, 0, 0});
  const Tensor value = Tensor::from<int64_t>({-4}, {1});
  expect_close(run_one("ConstantOfShape", {ints({2})}, {DType::i64, {2}}, {{"value", value}}),
               {-4, -4});
  expect_close(
      run_one("OneHot",
              {ints({1, -1, 5}), Tensor::scalar(int64_t{3}), Tensor::from<float>({0, 2}, {2})},
              {DType::f32, {3, 3}}),
      {0, 2, 0, 0, 0, 2, 0, 0, 0});
}

TEST(Trilu, UpperLowerAndShared) {
  const Tensor x = iota({3, 3});
  const Out out{DType::f32, {3, 3}};
  expect_close(run_one("Trilu", {x}, out), {1, 2, 3, 0, 5, 6, 0, 0, 9});
  expect_close(run_one("Trilu", {x, Tensor::scalar(int64_t{-1})}, out, {{"upper", int64_t{0}}},
                       {.share = {{0, 0}}}),
               {0, 0, 0, 4, 0, 0, 7, 8, 0});
  expect_close(run_one("Trilu", {x, Tensor::scalar(INT64_MAX)}, out), {0, 0, 0, 0, 0, 0, 0, 0, 0});
  const Out none{DType::f32, {3, 0}};
  EXPECT_EQ(run_one("Trilu", {Tensor::empty(DType::f32, {3, 0})}, none).size(), 0);
}

TEST(CumSum, ExclusiveReverseAxis) {
  const Tensor x = iota({2, 3});
  const Out out{DType::f32, {2, 3}};
  const Tensor axis = Tensor::scalar(int64_t{1});
  expect_close(run_one("CumSum", {x, axis}, out), {1, 3, 6, 4, 9, 15});
  expect_close(
      run_one("CumSum", {x, axis}, out, {{"exclusive", int64_t{1}}, {"reverse", int64_t{1}}}),
      {5, 3, 0, 11, 6, 0});
  expect_close(run_one("CumSum", {x, Tensor::scalar(int64_t{-2})}, out), {1, 2, 3, 5, 7, 9});
  EXPECT_THROW(run_one("CumSum", {x, Tensor::scalar(INT64_MIN)}, out), DataError);
}

TEST(ArgMax, TiesAndNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::from<float>({1, 3, 3, 2, nan, 0}, {2, 3});
  const Out out{DType::i64, {2, 1}};
  expect_close(run_one("ArgMax", {x}, out, {{"axis", int64_t{1}}}), {1, 1});
  expect_close(
      run_one("ArgMax", {x}, out, {{"axis", int64_t{1}}, {"select_last_index", int64_t{1}}}),
      {2, 1});
  expect_close(run_one("ArgMin", {x}, out, {{"axis", int64_t{1}}}), {0, 1});
  auto top = run_kernel("TopK", {x, ints({2})}, {{DType::f32, {2, 2}}, {DType::i64, {2, 2}}});
  expect_close(top[1], {1, 2, 1, 0});
}

TEST(Cast, PairsAndExtremes) {
  const Tensor x =
      Tensor::from<float>({-1.5F, 0, 300, std::numeric_limits<float>::quiet_NaN(), 1e20F}, {5});
  expect_close(run_one("Cast", {x}, {DType::i64, {5}}), {-1, 0, 300, 0, 9223372036854775807.0});
  expect_close(run_one("Cast", {x}, {DType::u8, {5}}), {0, 0, 255, 0, 255});
  expect_close(run_one("Cast", {x}, {DType::boolean, {5}}), {1, 0, 1, 1, 1});
  const Tensor y = Tensor::from<float>({1.0F, 65519, 65520, 5.9604645e-8F, 1e-9F}, {5});
  const Tensor half = run_one("Cast", {y}, {DType::f16, {5}});
  expect_close(run_one("Cast", {half}, {DType::f32, {5}}),
               {1, 65504, std::numeric_limits<double>::infinity(), 5.9604645e-8, 0}, 1e-7, 0);
  const Tensor brain =
      run_one("Cast", {Tensor::from<float>({1.00390625F, 1.01171875F}, {2})}, {DType::bf16, {2}});
  expect_close(run_one("Cast", {brain}, {DType::f64, {2}}), {1.0, 1.015625}, 0, 0);
}

TEST(Copy, SharesOrCopies) {
  const Tensor x = iota({2, 3});
  expect_close(run_one("Reshape", {x, ints({3, 2})}, {DType::f32, {3, 2}}), {1, 2, 3, 4, 5, 6});
  expect_close(run_one("Identity", {x}, {DType::f32, {2, 3}}, {}, {.share = {{0, 0}}}),
               {1, 2, 3, 4, 5, 6});
  expect_close(run_one("Shape", {x}, {DType::i64, {1}}, {{"start", int64_t{-1}}}), {3});
  expect_close(run_one("Size", {x}, {DType::i64, {}}), {6});
}

TEST(Unpack, GivesTheElementsOfEachWidth) {
  for (const DType dtype : {DType::u2, DType::i2, DType::u4, DType::i4, DType::f6e2m3}) {
    for (const int64_t count : {0, 1, 7, 4096, 40'001}) {  // the last in several tasks
      Tensor elements = Tensor::zeros(dtype, {count});
      const int mask = (1 << bits_of(dtype)) - 1;
      for (int64_t i = 0; i < count; ++i)
        static_cast<uint8_t*>(elements.data())[i] = static_cast<uint8_t>(i * 7 & mask);
      const Tensor y = run_one("steep.Unpack", {pack(elements)}, {dtype, {count}});
      EXPECT_TRUE(count == 0 || std::memcmp(y.data(), elements.data(), y.nbytes()) == 0)
          << name_of(dtype) << " " << count;
    }
  }
}

TEST(SetPart, WritesInPlaceOrToACopy) {
  const Tensor whole = iota({3, 5});
  const Tensor part = Tensor::from<float>({9, 9, 9, 9, 9, 9}, {3, 2});
  const Attrs attrs{{"axis", int64_t{1}}, {"start", int64_t{2}}};
  for (const bool in_place : {true, false}) {
    RunOptions how;
    if (in_place) how.share = {{0, 0}};
    const Tensor y =
        run_kernel("steep.SetPart", {whole, part}, {{DType::f32, {3, 5}}}, attrs, how)[0];
    for (int64_t i = 0; i < y.size(); ++i) {
      const bool in_part = i % 5 == 2 || i % 5 == 3;
      EXPECT_EQ(y.data<float>()[i], in_part ? 9 : static_cast<float>(i + 1));
    }
  }
}

}  // namespace
}  // namespace steep::test

// steep.GatherGrad against loops.

#include "kernels/run_kernel.h"
#include "steep/error.h"

namespace steep::test {
namespace {

Tensor shape_tensor(const Dims& dims) {
  return Tensor::from<int64_t>(dims, {static_cast<int64_t>(dims.size())});
}

void check(Dims dims, int64_t axis, const std::vector<int64_t>& indices, Dims index_dims,
           DType dtype, DType index_dtype = DType::i64) {
  SCOPED_TRACE(to_string(dims) + " axis " + std::to_string(axis));
  const int64_t front = axis < 0 ? axis + static_cast<int64_t>(dims.size()) : axis;
  Dims dy_dims(dims.begin(), dims.begin() + front);
  dy_dims.insert(dy_dims.end(), index_dims.begin(), index_dims.end());
  dy_dims.insert(dy_dims.end(), dims.begin() + front + 1, dims.end());
  const Tensor dy = random_tensor(dtype, dy_dims);
  Tensor index = Tensor::from(indices, index_dims);
  if (index_dtype == DType::i32) {
    index = Tensor::from(std::vector<int32_t>(indices.begin(), indices.end()), index_dims);
  }
  int64_t outer = 1, inner = 1;
  for (int64_t i = 0; i < static_cast<int64_t>(dims.size()); ++i) {
    if (i != front) (i < front ? outer : inner) *= dims[i];
  }
  const auto from = values(dy);
  std::vector<double> want(static_cast<size_t>(element_count(dims)));
  const auto picks = static_cast<int64_t>(indices.size());
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < picks; ++i) {
      const int64_t at = indices[i] < 0 ? indices[i] + dims[front] : indices[i];
      for (int64_t j = 0; j < inner; ++j) {
        want[(o * dims[front] + at) * inner + j] += from[(o * picks + i) * inner + j];
      }
    }
  }
  const auto run = [&](int threads) {
    return run_one("steep.GatherGrad", {dy, index, shape_tensor(dims)}, {dtype, dims},
                   {{"axis", axis}}, {.threads = threads});
  };
  const Tensor two = run(2);
  expect_close(two, want, 1e-5, dtype == DType::f64 ? 1e-10 : 1e-4);
  expect_same_bits(run(1), two);
}

std::vector<int64_t> random_indices(int64_t count, int64_t extent) {
  std::mt19937 engine(5);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(static_cast<int64_t>(engine() % static_cast<uint32_t>(2 * extent)) - extent);
  }
  return indices;
}

TEST(GatherGrad, AgreesWithLoops) {
  for (DType dtype : {DType::f32, DType::f64}) {
    check({5, 3}, 0, {0, 4, 4, -1, 2, -5}, {2, 3}, dtype);
    check({5000, 33}, 0, random_indices(700, 5000), {35, 20}, dtype);
    check({2, 513}, 0, random_indices(1024, 2), {8, 128}, dtype);
    check({3, 40, 7}, 1, random_indices(60, 40), {60}, dtype);
    check({3, 4, 50}, -1, random_indices(9, 50), {3, 3}, dtype);
    check({7}, 0, {3}, {}, dtype);
    check({7, 2}, 0, {}, {0}, dtype);
    check({0, 2}, 0, {}, {0}, dtype);
    check({5, 0}, 0, {1, 1}, {2}, dtype);
    check({100, 3}, 0, random_indices(50, 100), {50}, dtype, DType::i32);
  }
}

TEST(GatherGrad, RefusesIndicesOutsideTheAxis) {
  for (int64_t bad : {int64_t{3}, int64_t{-4}, INT64_MIN, INT64_MAX}) {
    const auto indices = Tensor::from<int64_t>({0, bad}, {2});
    try {
      run_one("steep.GatherGrad",
              {random_tensor(DType::f32, {2, 4}), indices, shape_tensor({3, 4})},
              {DType::f32, {3, 4}});
      FAIL() << bad;
    } catch (const DataError& e) {
      EXPECT_EQ(e.parts().node, "test_node");
      EXPECT_EQ(e.parts().received, std::to_string(bad) + " at position 1");
    }
  }
  EXPECT_THROW(run_one("steep.GatherGrad",
                       {random_tensor(DType::f32, {1, 4}), Tensor::from<int64_t>({0}, {1}),
                        shape_tensor({0, 4})},
                       {DType::f32, {0, 4}}),
               DataError);
}

}  // namespace
}  // namespace steep::test

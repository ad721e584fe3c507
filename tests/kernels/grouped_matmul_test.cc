// steep.GroupedMatMul and steep.GroupedOuterProduct against loops.

#include <algorithm>

#include "kernels/run_kernel.h"

namespace steep::test {
namespace {

struct Case {
  std::vector<int64_t> sizes;  // of the groups, in rows
  int64_t left_over;           // rows after the last group
  int64_t k, n;
};

/// The group of each row; -1 after the last group.
std::vector<int64_t> group_of_rows(const Case& c) {
  std::vector<int64_t> groups;
  for (size_t g = 0; g < c.sizes.size(); ++g) {
    groups.insert(groups.end(), c.sizes[g], static_cast<int64_t>(g));
  }
  groups.insert(groups.end(), c.left_over, -1);
  return groups;
}

Tensor offsets_of(const Case& c) {
  std::vector<int64_t> ends;
  for (int64_t size : c.sizes) ends.push_back(size + (ends.empty() ? 0 : ends.back()));
  return Tensor::from(ends, {static_cast<int64_t>(ends.size())});
}

/// Runs with one and two threads, which must give the same bits.
Tensor run_both(std::string_view op, const std::vector<Tensor>& inputs, const Out& out,
                const Attrs& attrs = {}) {
  const auto run = [&](int threads) {
    return run_one(op, inputs, {out.dtype, out.dims}, attrs,
                   {.threads = threads, .default_constants = false});
  };
  Tensor two = run(2);
  expect_same_bits(run(1), two);
  return two;
}

void check_products(const Case& c, DType dtype, bool transposed) {
  const auto groups = static_cast<int64_t>(c.sizes.size());
  const auto group = group_of_rows(c);
  const auto rows = static_cast<int64_t>(group.size());
  const Tensor x = random_tensor(dtype, {rows, c.k}, 1);
  const Tensor w =
      random_tensor(dtype, transposed ? Dims{groups, c.n, c.k} : Dims{groups, c.k, c.n}, 2);
  const auto vx = values(x), vw = values(w);
  std::vector<double> y(rows * c.n);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < c.n && group[i] >= 0; ++j) {
      for (int64_t k = 0; k < c.k; ++k) {
        const int64_t at = transposed ? j * c.k + k : k * c.n + j;
        y[i * c.n + j] += vx[i * c.k + k] * vw[group[i] * c.k * c.n + at];
      }
    }
  }
  const Tensor got = run_both("steep.GroupedMatMul", {x, w, offsets_of(c)}, {dtype, {rows, c.n}},
                              {{"transposed", int64_t{transposed}}});
  const double tolerance = (dtype == DType::f64 ? 1e-13 : 1e-5) * static_cast<double>(c.k + 1);
  expect_close(got, y, tolerance, tolerance);
}

void check_outer_products(const Case& c, DType dtype) {
  const auto groups = static_cast<int64_t>(c.sizes.size());
  const auto group = group_of_rows(c);
  const auto rows = static_cast<int64_t>(group.size());
  const Tensor a = random_tensor(dtype, {rows, c.k}, 3), b = random_tensor(dtype, {rows, c.n}, 4);
  const auto va = values(a), vb = values(b);
  std::vector<double> y(groups * c.k * c.n);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < c.k && group[i] >= 0; ++k) {
      for (int64_t j = 0; j < c.n; ++j) {
        y[(group[i] * c.k + k) * c.n + j] += va[i * c.k + k] * vb[i * c.n + j];
      }
    }
  }
  const Tensor got =
      run_both("steep.GroupedOuterProduct", {a, b, offsets_of(c)}, {dtype, {groups, c.k, c.n}});
  const double tolerance = (dtype == DType::f64 ? 1e-13 : 1e-5) * static_cast<double>(rows + 1);
  expect_close(got, y, tolerance, tolerance);
}

TEST(GroupedMatMul, AgreesWithLoops) {
  const std::vector<Case> cases = {{{2, 3}, 0, 4, 5},       {{0, 3, 0, 0, 4}, 2, 3, 1},
                                   {{1, 1, 1}, 0, 1, 7},    {{40, 0, 70, 1}, 5, 33, 65},
                                   {{700, 300}, 0, 64, 48}, {{3}, 1, 1100, 17},
                                   {{0, 0}, 0, 3, 2},       {{}, 3, 2, 2},
                                   {{2, 2}, 0, 0, 3},       {{2, 2}, 1, 3, 0}};
  for (const Case& c : cases) {
    SCOPED_TRACE(std::to_string(c.sizes.size()) + " groups, k " + std::to_string(c.k) + ", n " +
                 std::to_string(c.n));
    for (DType dtype : {DType::f32, DType::f64}) {
      check_products(c, dtype, false);
      check_products(c, dtype, true);
      check_outer_products(c, dtype);
    }
  }
}

TEST(GroupedMatMul, RefusesOffsetsOutOfRange) {
  const Tensor x = random_tensor(DType::f32, {4, 2}), w = random_tensor(DType::f32, {2, 2, 3});
  for (const std::vector<int64_t>& ends : std::vector<std::vector<int64_t>>{
           {3, 2}, {-1, 4}, {2, 5}, {INT64_MAX, INT64_MAX}, {INT64_MIN, 4}}) {
    EXPECT_THROW(run_one("steep.GroupedMatMul", {x, w, Tensor::from(ends, {2})},
                         {DType::f32, {4, 3}}, {}, {.default_constants = false}),
                 DataError);
    EXPECT_THROW(run_one("steep.GroupedOuterProduct", {x, x, Tensor::from(ends, {2})},
                         {DType::f32, {2, 2, 2}}, {}, {.default_constants = false}),
                 DataError);
  }
}

}  // namespace
}  // namespace steep::test

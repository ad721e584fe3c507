// LayerNormalization and its gradient against double-precision loops.

#include "kernels/run_kernel.h"

namespace steep::test {
namespace {

struct Case {
  Dims dims;
  int64_t axis = -1;
  bool bias = true;
};

/// The dimensions of a case: `rows` rows of `n` elements, and those of scale and statistics.
struct Extents {
  int64_t axis, rows = 1, n = 1;
  Dims scale, stat;

  explicit Extents(const Case& c) : axis(c.axis), stat(c.dims) {
    const auto rank = static_cast<int64_t>(c.dims.size());
    if (axis < 0) axis += rank;
    for (int64_t i = 0; i < rank; ++i) {
      (i < axis ? rows : n) *= c.dims[i];
      if (i >= axis) {
        scale.push_back(c.dims[i]);
        stat[i] = 1;
      }
    }
  }
};

/// Results and gradients in float64.
struct Expected {
  std::vector<double> y, mean, inv, dx, dscale, dbias;
};

Expected by_loops(const Extents& of, const std::vector<double>& x, const std::vector<double>& scale,
                  const std::vector<double>& bias, const std::vector<double>& dy) {
  const int64_t rows = of.rows, n = of.n;
  Expected e;
  for (auto* of_x : {&e.y, &e.dx}) of_x->resize(x.size());
  for (auto* of_rows : {&e.mean, &e.inv}) of_rows->resize(rows);
  for (auto* of_scale : {&e.dscale, &e.dbias}) of_scale->resize(n);
  for (int64_t i = 0; i < rows; ++i) {
    double var = 0, g_mean = 0, gu_mean = 0;
    for (int64_t j = 0; j < n; ++j) e.mean[i] += x[i * n + j] / n;
    for (int64_t j = 0; j < n; ++j) var += std::pow(x[i * n + j] - e.mean[i], 2) / n;
    e.inv[i] = 1 / std::sqrt(var + 1e-3);
    for (int64_t j = 0; j < n; ++j) {
      const double unit = (x[i * n + j] - e.mean[i]) * e.inv[i], up = dy[i * n + j];
      e.y[i * n + j] = unit * scale[j] + bias[j];
      g_mean += up * scale[j] / n;
      gu_mean += up * scale[j] * unit / n;
      e.dscale[j] += up * unit;
      e.dbias[j] += up;
    }
    for (int64_t j = 0; j < n; ++j) {
      const double unit = (x[i * n + j] - e.mean[i]) * e.inv[i];
      e.dx[i * n + j] = e.inv[i] * (dy[i * n + j] * scale[j] - g_mean - unit * gu_mean);
    }
  }
  return e;
}

void check(const Case& c, DType dtype, DType stat) {
  SCOPED_TRACE(to_string(c.dims) + " axis " + std::to_string(c.axis));
  const Extents of(c);
  const Tensor x = random_tensor(dtype, c.dims, 1, 3), scale = random_tensor(dtype, of.scale, 2);
  const Tensor bias = c.bias ? random_tensor(dtype, of.scale, 3) : Tensor();
  const Tensor dy = random_tensor(dtype, c.dims, 4);
  const Expected expected = by_loops(of, values(x), values(scale),
                                     c.bias ? values(bias) : std::vector<double>(of.n), values(dy));
  const double tol = dtype == DType::f64 && stat == DType::f64 ? 1e-11 : 2e-5;
  const auto forward = [&](const RunOptions& options) {
    return run_kernel("LayerNormalization", {x, scale, bias},
                      {{dtype, c.dims}, {stat, of.stat}, {stat, of.stat}},
                      {{"axis", c.axis}, {"epsilon", 1e-3}}, options);
  };
  const auto two = forward({.threads = 2}), one = forward({.threads = 1});
  expect_close(two[0], expected.y, tol, dtype == DType::f64 ? 1e-11 : tol);
  expect_close(two[1], expected.mean, tol, tol);
  expect_close(two[2], expected.inv, tol, tol);
  for (int i = 0; i < 3; ++i) expect_same_bits(one[i], two[i]);
  expect_same_bits(forward({.share = {{0, 0}}})[0], two[0]);

  const auto backward = [&](const RunOptions& options) {
    return run_kernel("steep.LayerNormalizationGrad", {dy, x, scale, two[1], two[2]},
                      {{dtype, c.dims}, {dtype, of.scale}, {dtype, of.scale}}, {{"axis", c.axis}},
                      options);
  };
  const auto b2 = backward({.threads = 2}), b1 = backward({.threads = 1});
  const double sum_tol = tol * std::sqrt(static_cast<double>(of.rows) + 1);
  expect_close(b2[0], expected.dx, tol, 4 * tol);
  expect_close(b2[1], expected.dscale, tol, sum_tol);
  expect_close(b2[2], expected.dbias, tol, sum_tol);
  for (int i = 0; i < 3; ++i) expect_same_bits(b1[i], b2[i]);
  expect_same_bits(backward({.share = {{0, 0}}})[0], b2[0]);
  expect_same_bits(backward({.share = {{1, 0}}})[0], b2[0]);
  const auto part = run_kernel("steep.LayerNormalizationGrad", {dy, x, scale, two[1], two[2]},
                               {{}, {dtype, of.scale}, {}}, {{"axis", c.axis}});
  expect_same_bits(part[1], b2[1]);
}

TEST(LayerNorm, AgreesWithLoops) {
  const std::vector<Case> cases = {{.dims = {4, 5}},
                                   {.dims = {3, 7, 33}},
                                   {.dims = {1000, 130}},
                                   {.dims = {2, 3, 4}, .axis = 1},
                                   {.dims = {6, 4}, .axis = 0},
                                   {.dims = {8, 128, 512}, .bias = false},
                                   {.dims = {3, 1}},
                                   {.dims = {0, 5}},
                                   {.dims = {5}}};
  for (const Case& c : cases) {
    check(c, DType::f32, DType::f32);
    check(c, DType::f64, DType::f64);
    check(c, DType::f64, DType::f32);
  }
}

TEST(LayerNorm, StatisticsMayBeUnused) {
  const auto x = random_tensor(DType::f32, {3, 8}), scale = random_tensor(DType::f32, {8});
  const auto all = run_kernel("LayerNormalization", {x, scale},
                              {{DType::f32, {3, 8}}, {DType::f32, {3, 1}}, {DType::f32, {3, 1}}});
  expect_same_bits(run_one("LayerNormalization", {x, scale}, {DType::f32, {3, 8}}), all[0]);
}

TEST(LayerNorm, LargeMeanKeepsItsVariance) {
  const auto x = Tensor::from<float>({10000, 10001, 10002, 10003}, {1, 4});
  const auto ones = Tensor::from<float>({1, 1, 1, 1}, {4});
  expect_close(run_one("LayerNormalization", {x, ones}, {DType::f32, {1, 4}}, {{"epsilon", 0.0}}),
               {-1.3416408, -0.4472136, 0.4472136, 1.3416408}, 1e-5);
}

}  // namespace
}  // namespace steep::test

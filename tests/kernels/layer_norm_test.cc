// LayerNormalization and its gradient against double-precision loops.

#include "kernels/run_kernel.h"

namespace steep::test {
namespace {

struct Case {
  Dims dims;
  int64_t axis = -1;
  bool bias = true;
};

void check(const Case& c, DType dtype, DType stat) {
  SCOPED_TRACE(to_string(c.dims) + " axis " + std::to_string(c.axis));
  const auto rank = static_cast<int64_t>(c.dims.size());
  const int64_t axis = c.axis < 0 ? c.axis + rank : c.axis;
  int64_t rows = 1, n = 1;
  Dims scale_dims, stat_dims = c.dims;
  for (int64_t i = 0; i < rank; ++i) {
    (i < axis ? rows : n) *= c.dims[i];
    if (i >= axis) {
      scale_dims.push_back(c.dims[i]);
      stat_dims[i] = 1;
    }
  }
  const Tensor x = random_tensor(dtype, c.dims, 1, 3), scale = random_tensor(dtype, scale_dims, 2);
  const Tensor bias = c.bias ? random_tensor(dtype, scale_dims, 3) : Tensor();
  const Tensor dy = random_tensor(dtype, c.dims, 4);
  const auto vx = values(x), vs = values(scale), vdy = values(dy);
  const auto vb = c.bias ? values(bias) : std::vector<double>(n);
  std::vector<double> y(vx.size()), mean(rows), inv(rows), dx(vx.size()), dscale(n), dbias(n);
  for (int64_t i = 0; i < rows; ++i) {
    double var = 0, g_mean = 0, gu_mean = 0;
    for (int64_t j = 0; j < n; ++j) mean[i] += vx[i * n + j] / n;
    for (int64_t j = 0; j < n; ++j) var += std::pow(vx[i * n + j] - mean[i], 2) / n;
    inv[i] = 1 / std::sqrt(var + 1e-3);
    for (int64_t j = 0; j < n; ++j) {
      const double unit = (vx[i * n + j] - mean[i]) * inv[i], up = vdy[i * n + j];
      y[i * n + j] = unit * vs[j] + vb[j];
      g_mean += up * vs[j] / n;
      gu_mean += up * vs[j] * unit / n;
      dscale[j] += up * unit;
      dbias[j] += up;
    }
    for (int64_t j = 0; j < n; ++j) {
      const double unit = (vx[i * n + j] - mean[i]) * inv[i];
      dx[i * n + j] = inv[i] * (vdy[i * n + j] * vs[j] - g_mean - unit * gu_mean);
    }
  }
  const double tol = dtype == DType::f64 && stat == DType::f64 ? 1e-11 : 2e-5;
  const auto forward = [&](const RunOptions& options) {
    return run_kernel("LayerNormalization", {x, scale, bias},
                      {{dtype, c.dims}, {stat, stat_dims}, {stat, stat_dims}},
                      {{"axis", c.axis}, {"epsilon", 1e-3}}, options);
  };
  const auto two = forward({.threads = 2}), one = forward({.threads = 1});
  expect_close(two[0], y, tol, dtype == DType::f64 ? 1e-11 : tol);
  expect_close(two[1], mean, tol, tol);
  expect_close(two[2], inv, tol, tol);
  for (int i = 0; i < 3; ++i) expect_same_bits(one[i], two[i]);
  expect_same_bits(forward({.share = {{0, 0}}})[0], two[0]);

  const auto backward = [&](const RunOptions& options) {
    return run_kernel("steep.LayerNormalizationGrad", {dy, x, scale, two[1], two[2]},
                      {{dtype, c.dims}, {dtype, scale_dims}, {dtype, scale_dims}},
                      {{"axis", c.axis}}, options);
  };
  const auto b2 = backward({.threads = 2}), b1 = backward({.threads = 1});
  const double sum_tol = tol * std::sqrt(static_cast<double>(rows) + 1);
  expect_close(b2[0], dx, tol, 4 * tol);
  expect_close(b2[1], dscale, tol, sum_tol);
  expect_close(b2[2], dbias, tol, sum_tol);
  for (int i = 0; i < 3; ++i) expect_same_bits(b1[i], b2[i]);
  expect_same_bits(backward({.share = {{0, 0}}})[0], b2[0]);
  expect_same_bits(backward({.share = {{1, 0}}})[0], b2[0]);
  const auto part = run_kernel("steep.LayerNormalizationGrad", {dy, x, scale, two[1], two[2]},
                               {{}, {dtype, scale_dims}, {}}, {{"axis", c.axis}});
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

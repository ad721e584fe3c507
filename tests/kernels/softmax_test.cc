// Softmax, LogSoftmax and steep.SoftmaxGrad against double-precision loops.

#include "kernels/run_kernel.h"

namespace steep::test {
namespace {

struct Line {
  Dims dims;
  int64_t axis;
};

/// Calls body(first, stride, n) for each line along the axis.
template <typename Body>
void for_each_line(const Line& c, Body&& body) {
  const auto axis =
      static_cast<size_t>(c.axis < 0 ? c.axis + static_cast<int64_t>(c.dims.size()) : c.axis);
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < c.dims.size(); ++i)
    (i < axis ? outer : inner) *= i == axis ? 1 : c.dims[i];
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) body(o * c.dims[axis] * inner + i, inner, c.dims[axis]);
  }
}

const std::vector<Line>& lines() {
  static const std::vector<Line> cases = {
      {{3, 5}, -1}, {{7, 129}, 1}, {{2, 3, 1000}, -1}, {{4, 16}, 0},     {{3, 17, 5}, 1},
      {{1, 1}, -1}, {{0, 4}, -1},  {{4, 0}, -1},       {{70000, 2}, -1}, {{6}, 0}};
  return cases;
}

void check(std::string_view op, const Line& c, DType dtype, std::string_view only) {
  SCOPED_TRACE(std::string(op) + to_string(c.dims) + " by " + std::string(only));
  const bool grad = op == "steep.SoftmaxGrad";
  const Tensor x = random_tensor(dtype, c.dims, 1, 5);
  const Tensor other = random_tensor(dtype, c.dims, 2);
  const auto a = values(x), b = values(other);
  std::vector<double> want(a.size());
  for_each_line(c, [&](int64_t first, int64_t stride, int64_t n) {
    double max = -INFINITY, sum = 0, dot = 0;
    for (int64_t j = 0; j < n; ++j) max = std::max(max, a[first + j * stride]);
    for (int64_t j = 0; j < n; ++j) sum += std::exp(a[first + j * stride] - max);
    for (int64_t j = 0; j < n; ++j) dot += a[first + j * stride] * b[first + j * stride];
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = first + j * stride;
      want[i] =
          grad ? b[i] * (a[i] - dot)
               : (op == "LogSoftmax" ? a[i] - max - std::log(sum) : std::exp(a[i] - max) / sum);
    }
  });
  std::vector<Tensor> inputs = {x};
  if (grad) inputs.push_back(other);
  const Attrs attrs = {{"axis", c.axis}};
  const Out out{dtype, c.dims};
  const Tensor two = run_one(op, inputs, out, attrs, {.threads = 2, .only = only});
  const Tensor one = run_one(op, inputs, out, attrs, {.threads = 1, .only = only});
  const Tensor shared = run_one(op, inputs, out, attrs, {.only = only, .share = {{0, 0}}});
  const double eps = dtype == DType::f64 ? 1e-13 : 2e-6;
  expect_close(two, want, eps, grad ? 50 * eps : eps * (op == "LogSoftmax" ? 1 : 1e-3));
  expect_same_bits(one, two);
  expect_same_bits(shared, two);
}

TEST(Softmax, AgreesWithLoops) {
  for (std::string_view op : {"Softmax", "steep.SafeSoftmax", "LogSoftmax", "steep.SoftmaxGrad"}) {
    for (const Line& c : lines()) {
      check(op, c, DType::f32, "reference");
      check(op, c, DType::f64, "reference");
      if (c.axis == -1 || c.axis + 1 == static_cast<int64_t>(c.dims.size()))
        check(op, c, DType::f32, "simd");
    }
  }
}

TEST(Softmax, InfinitiesAndNan) {
  const float inf = INFINITY;
  const auto x =
      Tensor::from<float>({-inf, 0, 0, -inf, -inf, -inf, NAN, 1, 2, 200, -200, 0}, {4, 3});
  const double third = 1 - std::exp(-200.0);
  for (std::string_view only : {"simd", "reference"}) {
    expect_close(run_one("Softmax", {x}, {DType::f32, {4, 3}}, {}, {.only = only}),
                 {0, 0.5, 0.5, NAN, NAN, NAN, NAN, NAN, NAN, third, 0, 0});
    expect_close(run_one("steep.SafeSoftmax", {x}, {DType::f32, {4, 3}}, {}, {.only = only}),
                 {0, 0.5, 0.5, 0, 0, 0, NAN, NAN, NAN, third, 0, 0});
    expect_close(run_one("LogSoftmax", {x}, {DType::f32, {4, 3}}, {}, {.only = only}),
                 {-inf, -std::log(2), -std::log(2), NAN, NAN, NAN, NAN, NAN, NAN, 0, -400, -200});
  }
}

}  // namespace
}  // namespace steep::test

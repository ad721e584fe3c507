// Poolings by oneDNN against Steep's loops, which the tables of tests/ops check in double
// precision.

#include "run_kernel.h"

namespace steep {
namespace {

using test::expect_same_bits;
using test::Out;
using test::random_tensor;
using test::run_one;

struct Case {
  Dims x, y;
  Ints kernel, strides, pads;
};

// Numbers of channels below, at and above oneDNN's vectors; asymmetric pads; windows that leave a
// remainder; windows with 255 and more elements.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{1, 1, 1}, {1, 1, 1}, {1}, {1}, {0, 0}},
      {{2, 3, 37}, {2, 3, 19}, {4}, {2}, {2, 1}},
      {{1, 3, 4, 5}, {1, 3, 3, 3}, {2, 3}, {1, 1}, {0, 0, 0, 0}},
      {{2, 16, 9, 9}, {2, 16, 5, 5}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {{3, 17, 11, 8}, {3, 17, 6, 4}, {3, 2}, {2, 2}, {0, 0, 2, 1}},
      {{1, 33, 56, 56}, {1, 33, 28, 28}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {{2, 64, 28, 28}, {2, 64, 28, 28}, {5, 5}, {1, 1}, {2, 2, 2, 2}},
      {{1, 5, 40, 40}, {1, 5, 2, 2}, {20, 20}, {20, 20}, {0, 0, 0, 0}},
      {{1, 2, 7, 7}, {1, 2, 1, 1}, {7, 7}, {1, 1}, {0, 0, 0, 0}},
      {{2, 18, 5, 6, 7}, {2, 18, 3, 3, 7}, {2, 3, 3}, {2, 2, 1}, {1, 0, 1, 0, 1, 1}},
      {{1, 1, 8, 8, 8}, {1, 1, 4, 4, 4}, {2, 2, 2}, {2, 2, 2}, {0, 0, 0, 0, 0, 0}},
  };
  return all;
}

Attrs attributes(const Case& c, bool count_pads) {
  return {{"kernel_shape", c.kernel},
          {"strides", c.strides},
          {"pads", c.pads},
          {"count_include_pad", int64_t{count_pads}}};
}

void expect_near(const Tensor& got, const Tensor& want) {
  test::expect_close(got, test::values(want), 1e-5, 1e-5);
}

/// Runs `op` by oneDNN, if it is there, with two threads and one, and by the loops.
void compare(std::string_view op, const std::vector<Tensor>& inputs, const Out& out,
             const Attrs& attrs) {
  if (!test::kOneDnn) return;
  const Tensor two = run_one(op, inputs, out, attrs, {.threads = 2, .candidate = "onednn"});
  const Tensor one = run_one(op, inputs, out, attrs, {.threads = 1, .only = "onednn"});
  expect_near(two, run_one(op, inputs, out, attrs, {.only = "loops"}));
  expect_same_bits(one, two);
}

TEST(Pool, OneDnnAgreesWithTheLoops) {
  if (!test::kOneDnn) GTEST_SKIP() << "built without oneDNN";
  for (const Case& c : cases()) {
    SCOPED_TRACE(to_string(c.x));
    const Tensor x = random_tensor(DType::f32, c.x, 1), dy = random_tensor(DType::f32, c.y, 2);
    Tensor shape = Tensor::empty(DType::i64, {static_cast<int64_t>(c.x.size())});
    std::copy(c.x.begin(), c.x.end(), shape.data<int64_t>());
    compare("MaxPool", {x}, {DType::f32, c.y}, attributes(c, false));
    compare("steep.MaxPoolGrad", {dy, x}, {DType::f32, c.x}, attributes(c, false));
    for (bool count_pads : {false, true}) {
      const Attrs attrs = attributes(c, count_pads);
      compare("AveragePool", {x}, {DType::f32, c.y}, attrs);
      compare("steep.AveragePoolGrad", {dy, shape}, {DType::f32, c.x}, attrs);
    }
  }
}

/// The first of equal elements is the maximum, in every layout that oneDNN uses.
TEST(Pool, TiesGoToTheFirst) {
  if (!test::kOneDnn) GTEST_SKIP() << "built without oneDNN";
  for (const Case& c : cases()) {
    SCOPED_TRACE(to_string(c.x));
    Tensor x = Tensor::empty(DType::f32, c.x);
    for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = static_cast<float>(i * 7 % 3) - 1;
    const Tensor dy = random_tensor(DType::f32, c.y, 2);
    compare("MaxPool", {x}, {DType::f32, c.y}, attributes(c, false));
    compare("steep.MaxPoolGrad", {dy, x}, {DType::f32, c.x}, attributes(c, false));
  }
}

TEST(Pool, NanIsTheLargestAndInfinityStays) {
  const Case c = cases()[5];
  const float inf = std::numeric_limits<float>::infinity();
  for (float odd : {std::numeric_limits<float>::quiet_NaN(), -inf, inf}) {
    Tensor x = random_tensor(DType::f32, c.x, 1);
    for (int64_t row = 0; row < 4; ++row) std::fill_n(x.data<float>() + row * 56, 4, odd);
    const Tensor dy = random_tensor(DType::f32, c.y, 2);
    compare("MaxPool", {x}, {DType::f32, c.y}, attributes(c, false));
    compare("steep.MaxPoolGrad", {dy, x}, {DType::f32, c.x}, attributes(c, false));
    const Tensor y = run_one("MaxPool", {x}, {DType::f32, c.y}, attributes(c, false));
    EXPECT_TRUE(
        test::close(static_cast<double>(y.data<float>()[0]), static_cast<double>(odd), 0, 0));
  }
}

TEST(Pool, OneDnnDeclinesWhatItDoesDifferently) {
  const Tensor x = random_tensor(DType::f32, {1, 2, 6, 6});
  // The last windows reach beyond the padding. Padding counts; elements beyond it do not.
  const Attrs beyond = {{"kernel_shape", Ints{3, 3}},
                        {"strides", Ints{2, 2}},
                        {"pads", Ints{1, 1, 1, 1}},
                        {"ceil_mode", int64_t{1}},
                        {"count_include_pad", int64_t{1}}};
  run_one("AveragePool", {x}, {DType::f32, {1, 2, 4, 4}}, beyond, {.candidate = "loops"});
  const Attrs dilated = {{"kernel_shape", Ints{2, 2}}, {"dilations", Ints{2, 3}}};
  run_one("MaxPool", {x}, {DType::f32, {1, 2, 4, 3}}, dilated, {.candidate = "loops"});
  const Attrs plain = {{"kernel_shape", Ints{2, 2}}};
  test::run_kernel("MaxPool", {x}, {{DType::f32, {1, 2, 5, 5}}, {DType::i64, {1, 2, 5, 5}}}, plain,
                   {.candidate = "loops"});
}

}  // namespace
}  // namespace steep

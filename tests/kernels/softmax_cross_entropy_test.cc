// steep.SoftmaxCrossEntropy and its gradient against double-precision loops.

#include "kernels/run_kernel.h"
#include "steep/error.h"

namespace steep::test {
namespace {

struct Case {
  int64_t rows, classes;
  std::string reduction = "mean";
  bool weighted = false;
  std::optional<int64_t> ignored{};
  DType labels = DType::i64;
};

struct Problem {
  Tensor logits, labels, weights, dloss;
  Attrs attrs;
  std::vector<int64_t> label_values;
};

Problem problem(const Case& c, DType dtype) {
  Problem p;
  p.logits = random_tensor(dtype, {c.rows, c.classes}, 1, 4);
  std::mt19937 engine(7);
  p.labels = Tensor::empty(c.labels, {c.rows});
  for (int64_t i = 0; i < c.rows; ++i) {
    int64_t label = static_cast<int64_t>(engine() % static_cast<uint32_t>(c.classes));
    if (c.ignored && i % 3 == 1) label = *c.ignored;
    p.label_values.push_back(label);
    if (c.labels == DType::i64) {
      p.labels.data<int64_t>()[i] = label;
    } else {
      p.labels.data<int32_t>()[i] = static_cast<int32_t>(label);
    }
  }
  if (c.weighted) {
    p.weights = random_tensor(dtype, {c.classes}, 3);
    for (int64_t j = 0; j < c.classes; ++j) {
      if (dtype == DType::f32) {
        p.weights.data<float>()[j] = std::abs(p.weights.data<float>()[j]) + 0.1F;
      } else {
        p.weights.data<double>()[j] = std::abs(p.weights.data<double>()[j]) + 0.1;
      }
    }
  }
  p.dloss = random_tensor(dtype, c.reduction == "none" ? Dims{c.rows} : Dims{}, 4);
  p.attrs.set("reduction", c.reduction);
  if (c.ignored) p.attrs.set("ignore_index", *c.ignored);
  return p;
}

void check(const Case& c, DType dtype) {
  SCOPED_TRACE(std::to_string(c.rows) + "x" + std::to_string(c.classes) + " " + c.reduction +
               (c.weighted ? " weighted" : "") + (c.ignored ? " ignoring" : ""));
  const Problem p = problem(c, dtype);
  const auto x = values(p.logits), g = values(p.dloss);
  const auto w = c.weighted ? values(p.weights) : std::vector<double>(c.classes, 1.0);
  std::vector<double> lse(c.rows), losses(c.rows), dx(x.size());
  double total = 0, divisor = 0;
  for (int64_t i = 0; i < c.rows; ++i) {
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < c.classes; ++j) max = std::max(max, x[i * c.classes + j]);
    for (int64_t j = 0; j < c.classes; ++j) sum += std::exp(x[i * c.classes + j] - max);
    lse[i] = max + std::log(sum);
    const int64_t label = p.label_values[i];
    if (c.ignored && label == *c.ignored) continue;
    losses[i] = w[label] * (lse[i] - x[i * c.classes + label]);
    total += losses[i];
    divisor += w[label];
  }
  if (c.reduction != "mean") divisor = 1;
  for (int64_t i = 0; i < c.rows; ++i) {
    const int64_t label = p.label_values[i];
    if (c.ignored && label == *c.ignored) continue;
    const double factor = (c.reduction == "none" ? g[i] : g[0]) * w[label] / divisor;
    for (int64_t j = 0; j < c.classes; ++j) {
      dx[i * c.classes + j] =
          factor * (std::exp(x[i * c.classes + j] - lse[i]) - (j == label ? 1 : 0));
    }
  }
  const bool none = c.reduction == "none";
  const std::vector<double> loss = none ? losses : std::vector<double>{total / divisor};
  const std::vector<Out> outs = {
      {dtype, none ? Dims{c.rows} : Dims{}}, {dtype, {c.rows}}, {dtype, {c.rows}}};
  const double rtol = dtype == DType::f64 ? 1e-12 : 2e-6;
  const auto forward = [&](int threads) {
    return run_kernel("steep.SoftmaxCrossEntropy", {p.logits, p.labels, p.weights}, outs, p.attrs,
                      {.threads = threads, .default_constants = false});
  };
  const auto two = forward(2), one = forward(1);
  expect_close(two[0], loss, rtol, rtol);
  expect_close(two[1], lse, rtol, rtol);
  expect_same_bits(one[0], two[0]);
  expect_same_bits(one[1], two[1]);
  expect_same_bits(one[2], two[2]);

  const auto backward = [&](int threads, bool share) {
    RunOptions options{.threads = threads, .default_constants = false};
    if (share) options.share = {{1, 0}};
    return run_one("steep.SoftmaxCrossEntropyGrad",
                   {p.dloss, p.logits, p.labels, two[1], two[2], p.weights},
                   {dtype, {c.rows, c.classes}}, p.attrs, options);
  };
  const Tensor d2 = backward(2, false);
  expect_close(d2, dx, 10 * rtol, rtol * 1e-2 + rtol * std::abs(g.empty() ? 0 : g[0]));
  expect_same_bits(backward(1, false), d2);
  expect_same_bits(backward(2, true), d2);
}

TEST(SoftmaxCrossEntropy, AgreesWithLoops) {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (const char* reduction : {"mean", "sum", "none"}) {
      for (bool weighted : {false, true}) {
        check({.rows = 5, .classes = 7, .reduction = reduction, .weighted = weighted}, dtype);
        check({.rows = 37,
               .classes = 4999,
               .reduction = reduction,
               .weighted = weighted,
               .ignored = -100},
              dtype);
        check({.rows = 9, .classes = 1, .reduction = reduction, .weighted = weighted}, dtype);
        check({.rows = 64,
               .classes = 2048,
               .reduction = reduction,
               .weighted = weighted,
               .ignored = 3,
               .labels = DType::i32},
              dtype);
      }
    }
  }
}

TEST(SoftmaxCrossEntropy, OutputsMayBeUnused) {
  const Problem p = problem({.rows = 4, .classes = 5}, DType::f32);
  const auto both = run_kernel("steep.SoftmaxCrossEntropy", {p.logits, p.labels},
                               {{DType::f32, {}}, {DType::f32, {4}}}, p.attrs);
  expect_same_bits(run_kernel("steep.SoftmaxCrossEntropy", {p.logits, p.labels},
                              {{DType::f32, {}}, {}}, p.attrs)[0],
                   both[0]);
  expect_same_bits(run_kernel("steep.SoftmaxCrossEntropy", {p.logits, p.labels},
                              {{}, {DType::f32, {4}}}, p.attrs)[1],
                   both[1]);
}

TEST(SoftmaxCrossEntropy, NothingToAverageIsNan) {
  const auto logits = random_tensor(DType::f32, {2, 3});
  const auto labels = Tensor::from<int64_t>({-1, -1}, {2});
  const Attrs attrs = {{"ignore_index", int64_t{-1}}};
  const auto out = run_kernel("steep.SoftmaxCrossEntropy", {logits, labels},
                              {{DType::f32, {}}, {DType::f32, {2}}, {DType::f32, {2}}}, attrs,
                              {.default_constants = false});
  EXPECT_TRUE(std::isnan(*out[0].data<float>()));
  expect_close(
      run_one("steep.SoftmaxCrossEntropyGrad",
              {Tensor::scalar(1.0F), logits, labels, out[1], out[2]}, {DType::f32, {2, 3}}, attrs),
      std::vector<double>(6, 0.0));
}

TEST(SoftmaxCrossEntropy, InfinitiesAndNan) {
  const float inf = INFINITY;
  const auto logits = Tensor::from<float>({0, -inf, 0, -inf, -inf, -inf, NAN, 0, 1}, {3, 3});
  const auto labels = Tensor::from<int64_t>({0, 0, 1}, {3});
  const Attrs attrs = {{"reduction", std::string("none")}};
  const auto out = run_kernel("steep.SoftmaxCrossEntropy", {logits, labels},
                              {{DType::f32, {3}}, {DType::f32, {3}}, {DType::f32, {3}}}, attrs);
  expect_close(out[0], {std::log(2), NAN, NAN});
  const auto dx = run_one("steep.SoftmaxCrossEntropyGrad",
                          {Tensor::from<float>({1, 1, 1}, {3}), logits, labels, out[1], out[2]},
                          {DType::f32, {3, 3}}, attrs);
  expect_close(dx, {-0.5, 0, 0.5, NAN, NAN, NAN, NAN, NAN, NAN});
}

/// Rows are read in blocks and shifted by the maximum of the first block; here later scores are
/// much greater.
TEST(SoftmaxCrossEntropy, LaterClassesFarAboveTheFirst) {
  constexpr int64_t kClasses = 7000;
  const float beginnings[] = {-500, -100, -59, -INFINITY, 500};
  const int64_t rows = std::size(beginnings);
  Tensor logits = random_tensor(DType::f32, {rows, kClasses});
  std::vector<double> want;
  for (int64_t i = 0; i < rows; ++i) {
    float* x = logits.data<float>() + i * kClasses;
    for (int64_t j = 0; j < 3000; ++j) x[j] += beginnings[i];
    x[kClasses - 1] += 90;
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < kClasses; ++j) max = std::max<double>(max, x[j]);
    for (int64_t j = 0; j < kClasses; ++j) sum += std::exp(x[j] - max);
    want.push_back(max + std::log(sum));
  }
  const auto out = run_kernel(
      "steep.SoftmaxCrossEntropy", {logits, Tensor::from<int64_t>({0, 0, 0, 1, 0}, {rows})},
      {{DType::f32, {}}, {DType::f32, {rows}}}, {}, {.default_constants = false});
  expect_close(out[1], want);
}

/// Scores near `offset`. The label's score exceeds the log-sum-exp of all others by `margin`.
void expect_exact(int64_t classes, float offset, double margin) {
  SCOPED_TRACE(std::to_string(classes) + " classes, " + std::to_string(offset) + ", " +
               std::to_string(margin));
  Tensor logits = random_tensor(DType::f32, {1, classes}, 5);
  auto* x = logits.data<float>();
  const int64_t label = 7919 % classes;
  double others = 0;
  for (int64_t j = 0; j < classes; ++j) {
    x[j] += offset;
    if (j != label) others += std::exp(double{x[j]} - offset);
  }
  x[label] = static_cast<float>(std::log(others) + margin + offset);
  others *= std::exp(offset - double{x[label]});
  const auto labels = Tensor::from<int64_t>({label}, {1});
  const auto out = run_kernel("steep.SoftmaxCrossEntropy", {logits, labels},
                              {{DType::f32, {}}, {DType::f32, {1}}, {DType::f32, {1}}}, {},
                              {.default_constants = false});
  const double loss = std::log1p(others), found = *out[0].data<float>();
  EXPECT_NEAR(found, loss, 2e-6 * loss);
  const Tensor dx =
      run_one("steep.SoftmaxCrossEntropyGrad",
              {Tensor::scalar(1.0F), logits, labels, out[1], out[2]}, {DType::f32, {1, classes}});
  const double slope = -others / (1 + others);
  EXPECT_NEAR(dx.data<float>()[label], slope, 2e-6 * std::abs(slope) + offset * 1e-14);
  for (int64_t j = 0; j < classes; ++j) {
    const double p = std::exp(double{x[j]} - x[label] - loss);
    if (j == label) continue;
    ASSERT_NEAR(dx.data<float>()[j], p, 4e-6 * p) << j;
  }
}

/// In float, log Σ exp(x) - x[label] and p - 1 lose all digits when the loss is small, and log Σ
/// exp(x) does when all scores are large.
TEST(SoftmaxCrossEntropy, ErrorsAreRelativeHoweverSmallTheLoss) {
  for (const int64_t classes : {2, 10, 1000, 50257}) {
    for (const float offset : {0.0F, 1e4F}) {
      for (const double margin : {18.4, 12.2, 6.9, 2.3, 0.0, -20.0})
        expect_exact(classes, offset, margin);
    }
  }
}

TEST(SoftmaxCrossEntropy, RefusesLabelsOutsideTheClasses) {
  const auto logits = random_tensor(DType::f32, {2, 3});
  for (int64_t bad : {int64_t{3}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    const auto labels = Tensor::from<int64_t>({0, bad}, {2});
    try {
      run_kernel("steep.SoftmaxCrossEntropy", {logits, labels},
                 {{DType::f32, {}}, {DType::f32, {2}}});
      FAIL() << bad;
    } catch (const DataError& e) {
      EXPECT_EQ(e.parts().node, "test_node");
      EXPECT_EQ(e.parts().expected, "labels from 0 to 2");
      EXPECT_EQ(e.parts().received, std::to_string(bad) + " in row 1");
    }
    EXPECT_THROW(run_one("steep.SoftmaxCrossEntropyGrad",
                         {Tensor::scalar(1.0F), logits, labels, Tensor::from<float>({0, 0}, {2}),
                          Tensor::from<float>({0, 0}, {2})},
                         {DType::f32, {2, 3}}),
                 DataError);
  }
}

TEST(SoftmaxCrossEntropy, NoRows) {
  const auto logits = random_tensor(DType::f32, {0, 3});
  const auto labels = Tensor::empty(DType::i64, {0});
  const auto out =
      run_kernel("steep.SoftmaxCrossEntropy", {logits, labels},
                 {{DType::f32, {}}, {DType::f32, {0}}}, {{"reduction", std::string("sum")}});
  EXPECT_EQ(*out[0].data<float>(), 0);
}

}  // namespace
}  // namespace steep::test

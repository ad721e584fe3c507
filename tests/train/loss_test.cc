// Each loss and its gradient against plain loops in double precision.
#include "train/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "steep/error.h"
#include "train/models.h"

namespace steep {
namespace {

using testing::model_bytes;
using testing::random_tensor;
using testing::session_of;

/// y = x + shift: the gradient of shift is the gradient of y, summed over rows.
std::string shift_bytes(const std::string& rows, int classes) {
  std::string zeros = "0.0";
  for (int i = 1; i < classes; ++i) zeros += ", 0.0";
  const std::string n = std::to_string(classes);
  return model_bytes("g (float[" + rows + ", " + n + "] x) => (float[" + rows + ", " + n +
                     "] y) <float[" + n + "] shift = {" + zeros + "}> { y = Add(x, shift) }");
}

const TrainingOptions kSgd{.optimizer = {.kind = "sgd"}};

TrainingOptions with_loss(const std::string& loss) {
  TrainingOptions options = kSgd;
  options.loss = loss;
  return options;
}

TEST(Loss, MeanSquaredError) {
  auto session = session_of(shift_bytes("n", 3), with_loss("mse"));
  const Tensor x = random_tensor({5, 3}, 1), t = random_tensor({5, 3}, 2);
  double loss = 0, expected = 0;
  std::vector<double> g(3);
  for (int i = 0; i < 15; ++i) {
    const double d = x.data<float>()[i] - t.data<float>()[i];
    expected += d * d / 15;
    g[static_cast<size_t>(i % 3)] += 2 * d / 15;
  }
  const auto gradients = session.gradients(std::vector<Tensor>{x, t}, &loss);
  EXPECT_NEAR(loss, expected, 1e-6);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(gradients.at("shift").data<float>()[i], g[i], 1e-6);
  EXPECT_NEAR(*session.eval({x, t}).loss, expected, 1e-6);
}

TEST(Loss, BinaryCrossEntropyIsStableAndRightAtZero) {
  auto session = session_of(shift_bytes("n", 1), with_loss("binary_cross_entropy_with_logits"));
  for (float x : {-200.0f, -30.0f, -1.0f, 0.0f, 0.5f, 30.0f, 200.0f}) {
    for (float t : {0.0f, 0.25f, 1.0f}) {
      double loss = 0;
      const auto gradients = session.gradients(
          std::vector<Tensor>{Tensor::from<float>({x}, {1, 1}), Tensor::from<float>({t}, {1, 1})},
          &loss);
      const double expected =
          std::max(x, 0.0f) - double{x} * t + std::log1p(std::exp(-std::abs(double{x})));
      EXPECT_NEAR(loss, expected, 1e-6 * std::max(1.0, expected)) << x << " " << t;
      EXPECT_NEAR(gradients.at("shift").data<float>()[0], 1 / (1 + std::exp(-double{x})) - t, 1e-6)
          << x << " " << t;
    }
  }
}

/// The mean over the rows that count, and its gradient, summed over rows.
double cross_entropy(const Tensor& x, const Tensor& labels, int64_t ignored,
                     std::vector<double>* g) {
  const int64_t classes = x.dims().back(), rows = labels.size();
  g->assign(static_cast<size_t>(classes), 0);
  double loss = 0;
  int64_t counted = 0;
  for (int64_t i = 0; i < rows; ++i) counted += labels.data<int64_t>()[i] != ignored;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t label = labels.data<int64_t>()[i];
    if (label == ignored) continue;
    const float* row = x.data<float>() + i * classes;
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(double{row[c]});
    loss += (std::log(sum) - row[label]) / static_cast<double>(counted);
    for (int64_t c = 0; c < classes; ++c) {
      (*g)[static_cast<size_t>(c)] +=
          (std::exp(double{row[c]}) / sum - (c == label)) / static_cast<double>(counted);
    }
  }
  return loss;
}

TEST(Loss, SoftmaxCrossEntropy) {
  for (bool ignore : {false, true}) {
    for (const std::string& rows : {std::string("n"), std::string("n, t")}) {
      TrainingOptions options = with_loss("softmax_cross_entropy");
      if (ignore) options.ignore_index = 2;
      auto session = session_of(shift_bytes(rows, 4), options);
      const Dims leading = rows == "n" ? Dims{6} : Dims{2, 3};
      Dims dims = leading;
      dims.push_back(4);
      const Tensor x = random_tensor(dims, 3);
      const Tensor labels = Tensor::from<int64_t>({0, 2, 3, 1, 2, 0}, leading);
      std::vector<double> g;
      const double expected = cross_entropy(x, labels, ignore ? 2 : -1, &g);
      double loss = 0;
      const auto gradients = session.gradients(std::vector<Tensor>{x, labels}, &loss);
      EXPECT_NEAR(loss, expected, 1e-6);
      for (size_t c = 0; c < 4; ++c)
        EXPECT_NEAR(gradients.at("shift").data<float>()[c], g[c], 1e-6);
    }
  }
}

TEST(Loss, OfTheModelItself) {
  auto session = session_of(model_bytes(R"(g (float[n, 2] x, float[n, 2] t) => (float y, float loss)
      <float[2] w = {1.0, 2.0}> {
        p = Mul(x, w)  d = Sub(p, t)  s = Mul(d, d)  loss = ReduceMean<keepdims = 0>(s)
        y = ReduceSum<keepdims = 0>(p) })"),
                            kSgd);
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}, {2, 2}), t = Tensor::zeros(DType::f32, {2, 2});
  EXPECT_EQ(session.input_info().size(), 2u);
  const EvalResult result = session.eval({x, t});
  EXPECT_NEAR(*result.loss, (1 + 16 + 9 + 64) / 4.0, 1e-6);
  ASSERT_EQ(result.outputs.size(), 2u);
  EXPECT_NEAR(*result.outputs[0].data<float>(), 1 + 4 + 3 + 8, 1e-6);
  EXPECT_NEAR(session.step({x, t}).loss, 22.5, 1e-5);
  EXPECT_LT(*session.eval({x, t}).loss, 22.5);
}

TEST(Loss, RefusesWhatDoesNotFit) {
  EXPECT_THROW(session_of(shift_bytes("n", 3), with_loss("hinge")), ModelError);
  EXPECT_THROW(session_of(shift_bytes("n", 3), with_loss("")), ShapeError);
  TrainingOptions unknown = with_loss("mse");
  unknown.output = "why";
  EXPECT_THROW(session_of(shift_bytes("n", 3), unknown), ModelError);
  const std::string two = model_bytes(
      "g (float[n] x) => (float[n] y, float[n] z) <float[1] w = {1.0}> { y = Mul(x, w) z = Neg(y) "
      "}");
  EXPECT_THROW(session_of(two, with_loss("mse")), ModelError);
  EXPECT_THROW(session_of(two,
                          [] {
                            TrainingOptions o = with_loss("softmax_cross_entropy");
                            o.output = "y";
                            return o;
                          }()),
               ShapeError);
}

TEST(Loss, AModelNeedsANameOfItsOwn) {
  const std::string own = model_bytes(
      "l (float[n, 3] y, float[n, 3] t) => (float loss) { d = Sub(y, t) "
      "loss = ReduceL2<keepdims = 0>(d) }");
  for (const auto& [name, fits] : {std::pair("own", true), {"", false}, {"mse", false}}) {
    TrainingOptions options = with_loss(name);
    options.loss_model = own;
    if (fits) {
      EXPECT_NO_THROW(session_of(shift_bytes("n", 3), options));
    } else {
      EXPECT_THROW(session_of(shift_bytes("n", 3), options), ModelError) << name;
    }
  }
}

TEST(Loss, ASequenceIsNone) {
  const std::string model = model_bytes(
      "g (float x) => (float y) <float w = {1.0}> { z = Mul(x, w) y = SequenceConstruct(z) }");
  for (const char* loss : {"", "mse"})
    EXPECT_THROW(session_of(model, with_loss(loss)), ShapeError) << loss;
}

}  // namespace
}  // namespace steep

// The C++ API of InferenceSession, gradient_model() and check_model().
#include <gtest/gtest.h>

#include "model/onnx_text.h"
#include "steep/check.h"
#include "steep/gradient.h"
#include "steep/inference.h"

namespace steep {
namespace {

using testing::as_span;

/// y = x w and its sum; x has any number of rows.
std::string layer() {
  return testing::to_bytes(testing::parse_text(R"(<ir_version: 8, opset_import: ["" : 18]>
    layer (float[rows, 2] x) => (float[rows, 2] y, float loss) <float[2] w = {3.0, 5.0}> {
      y = Mul(x, w)
      loss = ReduceSum<keepdims = 0>(y)
    })"));
}

Tensor rows(const std::vector<float>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size()) / 2, 2});
}

std::vector<float> values(const Tensor& t) { return {t.data<float>(), t.data<float>() + t.size()}; }

TEST(InferenceSession, RunsAtAnyNumberOfRows) {
  InferenceSession session(as_span(layer()));
  for (const int64_t count : {1, 3}) {
    const auto results = session.run({{"x", Tensor::zeros(DType::f32, {count, 2})}});
    ASSERT_EQ(results.size(), 2U);
    EXPECT_EQ(results[0].dims(), (Dims{count, 2}));
  }
  const std::string wanted[] = {"loss", "y"};
  const auto results = session.run({{"x", rows({1, 2, 3, 4})}}, wanted);
  EXPECT_EQ(values(results[0]), (std::vector<float>{3 + 10 + 9 + 20}));
  EXPECT_EQ(values(results[1]), (std::vector<float>{3, 10, 9, 20}));
}

TEST(InferenceSession, SaysWhatItTakesAndGives) {
  const InferenceSession session(as_span(layer()));
  EXPECT_EQ(session.input_info().at(0).text(), "float32[rows, 2]");
  EXPECT_EQ(session.output_info().at(1).text(), "float32[]");
  EXPECT_EQ(session.metadata().graph_name, "layer");
}

TEST(InferenceSession, ConvertsItsInputs) {
  InferenceSession session(as_span(layer()));
  const std::vector<double> x{1, 2};
  const auto results = session.run({{"x", Tensor::from(x, {1, 2})}});
  ASSERT_EQ(results[0].dtype(), DType::f32);
  EXPECT_EQ(values(results[0]), (std::vector<float>{3, 10}));
}

TEST(InferenceSession, ConvertsToBoolsWhatIsABool) {
  const std::string mask = testing::to_bytes(testing::parse_text(R"(
    <ir_version: 8, opset_import: ["" : 18]>
    mask (bool[n] x) => (float[n] y) { y = Cast<to = 1>(x) })"));
  InferenceSession session(as_span(mask));
  const auto run = [&](int64_t last) {
    return session.run({{"x", Tensor::from(std::vector<int64_t>{0, last}, {2})}}).at(0);
  };
  EXPECT_EQ(values(run(1)), (std::vector<float>{0, 1}));
  for (const int64_t number : {2, 255, 256, -1}) EXPECT_THROW(run(number), DataError) << number;
}

TEST(InferenceSession, RefusesBeforeItRuns) {
  InferenceSession session(as_span(layer()));
  EXPECT_THROW(session.run({}), DataError);
  EXPECT_THROW(session.run({{"z", rows({1, 2})}}), DataError);
  EXPECT_THROW(session.run({{"x", Tensor::zeros(DType::f8e5m2, {1, 2})}}), ShapeError);
  EXPECT_THROW(session.run({{"x", Tensor::zeros(DType::f32, {2})}}), ShapeError);
  EXPECT_THROW(session.run({{"x", Tensor::zeros(DType::f32, {1, 3})}}), ShapeError);
  EXPECT_THROW(InferenceSession(as_span("no model")), ModelError);
}

TEST(GradientModel, IsAModelOfItsOwn) {
  const std::string gradients =
      gradient_model(as_span(layer()), {.wrt = {"w", "x"}, .outputs = {"loss"}});
  InferenceSession session(as_span(gradients));
  const auto results = session.run({{"x", rows({1, 2, 3, 4})}});
  ASSERT_EQ(results.size(), 3U);
  EXPECT_EQ(values(results[1]), (std::vector<float>{4, 6}));
  EXPECT_EQ(values(results[2]), (std::vector<float>{3, 5, 3, 5}));
  EXPECT_THROW(gradient_model(as_span(layer()), {.wrt = {"v"}}), ModelError);
}

TEST(CheckModel, ListsParametersOrObstacles) {
  const CheckReport report = check_model(as_span(layer()), {.output = "loss"});
  EXPECT_TRUE(report.obstacles.empty());
  ASSERT_EQ(report.parameters.size(), 1U);
  EXPECT_EQ(report.parameters[0].name, "w");
  EXPECT_EQ(check_model(as_span(layer()), {.output = "z"}).obstacles.size(), 1U);
}

}  // namespace
}  // namespace steep

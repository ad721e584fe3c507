// The C++ API of GradientSession.
#include "steep/gradient_session.h"

#include <gtest/gtest.h>

#include "model/onnx_text.h"

namespace steep {
namespace {

using testing::as_span;

/// y = x w; x has any number of rows.
std::string layer() {
  return testing::to_bytes(testing::parse_text(R"(<ir_version: 8, opset_import: ["" : 18]>
    layer (float[rows, 2] x) => (float[rows, 2] y) <float[2] w = {3.0, 5.0}> {
      y = Mul(x, w)
    })"));
}

GradientSession session_of(bool borrow = false) {
  return GradientSession(as_span(layer()), {.wrt = {"x", "w"}, .borrow = borrow});
}

Tensor rows(const std::vector<float>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size()) / 2, 2});
}

std::vector<float> values(const Tensor& t) { return {t.data<float>(), t.data<float>() + t.size()}; }

TEST(GradientSession, SeveralRunsWait) {
  for (const bool borrow : {false, true}) {
    GradientSession session = session_of(borrow);
    auto one = session.forward({{"x", rows({1, 2})}});
    auto two = session.forward({{"x", rows({1, 2, 3, 4})}});
    EXPECT_EQ(values(two.outputs[0]), (std::vector<float>{3, 10, 9, 20}));
    auto gradients = session.backward(two.run, {{"y", rows({1, 1, 2, 2})}});
    EXPECT_EQ(values(gradients.at("w")), (std::vector<float>{7, 10}));
    gradients = session.backward(one.run, {{"y", rows({1, 2})}});
    EXPECT_EQ(values(gradients.at("w")), (std::vector<float>{1, 4}));
    EXPECT_EQ(values(gradients.at("x")), (std::vector<float>{3, 10}));
  }
}

TEST(GradientSession, RefusesRunsThatItCannotFinish) {
  GradientSession session = session_of();
  GradientSession other = session_of();
  auto [outputs, run] = session.forward({{"x", rows({1, 2})}});
  EXPECT_THROW(other.backward(run, {{"y", rows({1, 1})}}), DataError);
  EXPECT_THROW(session.backward(run, {{"y", rows({1, 1, 1, 1})}}), ShapeError);
  EXPECT_THROW(session.backward(run, {}), DataError);
  session.backward(run, {{"y", rows({1, 1})}});
  EXPECT_THROW(session.backward(run, {{"y", rows({1, 1})}}), DataError);
  GradientSession::Run none;
  EXPECT_THROW(session.backward(none, {{"y", rows({1, 1})}}), DataError);
}

TEST(GradientSession, TheGradientOfOneNumberIsOneInAnyDtype) {
  const std::string sum = testing::to_bytes(testing::parse_text(R"(
    <ir_version: 8, opset_import: ["" : 18]>
    sum (double[rows, 2] x) => (double y) { y = ReduceSum<keepdims = 0>(x) })"));
  GradientSession session(as_span(sum), {.wrt = {"x"}});
  auto [outputs, run] = session.forward({{"x", rows({1, 2})}});
  const Tensor gradient = session.backward(run, {}).at("x");
  ASSERT_EQ(gradient.dtype(), DType::f64);
  EXPECT_EQ(gradient.data<double>()[1], 1);
}

TEST(GradientSession, NamesEachCandidateOnce) {
  try {
    GradientSession(as_span(layer()), {.wrt = {"w", "v"}});
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_EQ(error.parts().expected, "x, w");
  }
}

TEST(GradientSession, WeightsLieInOneBuffer) {
  GradientSession session = session_of();
  ASSERT_EQ(session.weight_count(), 2);
  Tensor flat = session.flatten(session.weights());
  EXPECT_EQ(values(flat), (std::vector<float>{3, 5}));
  session.bind_weights(session.views(flat));
  flat.data<float>()[0] = 7;
  EXPECT_EQ(values(session.eval({{"x", rows({1, 1})}})[0]), (std::vector<float>{7, 5}));
  auto [outputs, run] = session.forward({{"x", rows({1, 1})}});
  flat.data<float>()[0] = 0;  // the run has its own copy
  EXPECT_EQ(values(session.backward(run, {{"y", rows({1, 1})}}).at("x")),
            (std::vector<float>{7, 5}));
  EXPECT_THROW(session.views(rows({1, 2})), ShapeError);
  session.set_weights({{"w", Tensor::from({1.0f, 2.0f}, {2})}});
  EXPECT_EQ(values(session.weights().at("w")), (std::vector<float>{1, 2}));
}

}  // namespace
}  // namespace steep

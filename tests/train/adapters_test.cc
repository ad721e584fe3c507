// Low-rank adapters: which weights get them, and the files with and without them.
#include "train/adapters.h"

#include <gtest/gtest.h>

#include <cmath>

#include "steep/error.h"
#include "steep/inference.h"
#include "train/models.h"

namespace steep {
namespace {

using testing::as_span;

/// y = tanh(x · w0) · w1ᵀ, where w1 is stored turned.
std::string two_products() {
  return testing::model_bytes(R"(g (float[rows, 3] x) => (float[rows, 2] y)
    <float[3, 4] w0 = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, -0.8, 0.9, 0.15, -0.25, 0.35},
     float[2, 4] w1 = {0.2, -0.1, 0.4, 0.3, 0.6, -0.5, 0.8, -0.7}, float[2] b = {1, 2}>
    { h = MatMul(x, w0)  t = Tanh(h)  y = Gemm<transB = 1>(t, w1, b) })");
}

TrainingOptions with_rank(int64_t rank) {
  TrainingOptions options{.loss = "mse", .lora_rank = rank};
  options.optimizer.lr = 0.05;
  return options;
}

Tensor output_of(const std::string& bytes, const Tensor& x) {
  InferenceSession session(as_span(bytes));
  return session.run({{"x", x}}).at(0);
}

TEST(Adapters, OneForEachMatrixOfAProduct) {
  const std::string bytes = two_products();
  const DetachedModel model(as_span(bytes), {}, {});
  const std::vector<Adapter> found = find_adapters(model);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[2].why_not, "is no matrix, but has 1 axis");
  const std::vector<Adapter> chosen = choose_adapters(model, with_rank(2));
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_EQ(chosen[1].weight, "w1");
  EXPECT_EQ(chosen[1].rows, 4);
  EXPECT_EQ(chosen[1].columns, 2);
  EXPECT_TRUE(chosen[1].transposed && chosen[1].merges && !chosen[0].transposed);
  EXPECT_THROW(choose_adapters(model, with_rank(3)), ModelError);  // w1 has an extent of 2
}

TEST(Adapters, InitialValuesDependOnSeedAndName) {
  const std::string bytes = two_products();
  const DetachedModel model(as_span(bytes), {}, {});
  const std::vector<Adapter> chosen = choose_adapters(model, with_rank(2));
  const auto one = initial_adapters(chosen, 1), again = initial_adapters(chosen, 1),
             other = initial_adapters(chosen, 2);
  EXPECT_TRUE(testing::same_tensors(one, again));
  EXPECT_FALSE(testing::same_tensors(one, other));
  const Tensor& a = one.at("w0.lora_A");
  EXPECT_EQ(a.dims(), (Dims{3, 2}));
  for (int64_t i = 0; i < a.size(); ++i) {
    EXPECT_LE(std::abs(a.data<float>()[i]), 1 / std::sqrt(3.0f));
    EXPECT_NE(a.data<float>()[i], 0);
  }
  const Tensor& b = one.at("w0.lora_B");
  for (int64_t i = 0; i < b.size(); ++i) EXPECT_EQ(b.data<float>()[i], 0);
}

TEST(Adapters, MergedAndBesideComputeTheSame) {
  const std::string bytes = two_products();
  TrainingOptions options = with_rank(2);
  options.lora_alpha = 3;
  TrainingSession session(as_span(bytes), options);
  EXPECT_EQ(session.adapted_names(), (std::vector<std::string>{"w0", "w1"}));
  const Tensor x = testing::random_tensor({5, 3}, 1), y = testing::random_tensor({5, 2}, 2);
  const double before = session.step({x, y}).loss;
  for (int i = 0; i < 10; ++i) session.step({x, y});
  EXPECT_LT(session.eval({x, y}).loss.value(), before);
  const Tensor here = session.eval({x}).outputs.at(0);
  for (const bool merge : {true, false}) {
    const Tensor there = output_of(session.export_onnx_bytes(false, merge), x);
    ASSERT_EQ(there.dims(), here.dims());
    for (int64_t i = 0; i < here.size(); ++i)
      EXPECT_NEAR(there.data<float>()[i], here.data<float>()[i], 1e-5);
  }
}

TEST(Adapters, AFileWithACycleIsRefusedAsOthersAre) {
  std::string bytes = testing::model_bytes(R"(g (float[rows, 3] x) => (float[rows, 3] y)
    <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
    { u = Identity(v)  v = Identity(u)  p = MatMul(x, w)  y = Add(p, u) })");
  EXPECT_THROW(TrainingSession(as_span(bytes), with_rank(1)), ModelError);
}

}  // namespace
}  // namespace steep

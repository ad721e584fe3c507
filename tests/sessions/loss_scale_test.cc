// Dynamic loss scaling with precision "fp16": what a step that overflows leaves unchanged, when the
// scale grows and shrinks, and that checkpoints keep it.

#include <gtest/gtest.h>

#include <cmath>

#include "steep/error.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::mlp_bytes;
using testing::random_labels;
using testing::random_tensor;
using testing::same_tensors;
using testing::session_of;

TrainingOptions scaled(double initial, int64_t interval, const std::string& optimizer = "adamw") {
  OptimizerOptions with{.kind = optimizer, .lr = 0.02};
  if (optimizer == "sgd") with.momentum = 0.9;
  return {.loss = "softmax_cross_entropy",
          .optimizer = with,
          .precision = "fp16",
          .loss_scale = {.initial = initial, .growth_interval = interval}};
}

std::vector<Tensor> batch() { return {random_tensor({8, 3}, 1), random_labels(8, 4, 2)}; }

/// One row with prediction class 0 and label 2: the gradient of the logits is ±1, which overflows
/// float16 when multiplied with 2^16, but not with 2^15.
std::vector<Tensor> overflowing() {
  return {Tensor::from(std::vector<float>{1000, 1000, 1000}, {1, 3}),
          Tensor::from(std::vector<int64_t>{2}, {1})};
}

TEST(LossScale, AnOverflowLeavesEverythingButTheScale) {
  for (const char* optimizer : {"sgd", "adam", "adamw", "lamb"}) {
    auto session = session_of(mlp_bytes(false), scaled(65536, 2000, optimizer));
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(session.step(batch()).skipped);
    const auto weights = session.weights(), moments = session.optimizer_state();
    const double lr = session.lr();
    const StepResult result = session.step(overflowing());
    EXPECT_TRUE(result.skipped) << optimizer;
    EXPECT_EQ(result.step, 3);
    EXPECT_EQ(result.loss_scale, 65536);
    EXPECT_EQ(session.step_count(), 3);
    EXPECT_EQ(session.loss_scale(), 32768);
    EXPECT_EQ(session.lr(), lr);
    EXPECT_TRUE(same_tensors(session.weights(), weights)) << optimizer;
    EXPECT_TRUE(same_tensors(session.optimizer_state(), moments)) << optimizer;
    EXPECT_FALSE(session.step(batch()).skipped);
    EXPECT_EQ(session.step_count(), 4);
    EXPECT_FALSE(same_tensors(session.weights(), weights)) << optimizer;
  }
}

TEST(LossScale, GrowsAfterEnoughCleanStepsAndStopsAtItsBounds) {
  TrainingOptions options = scaled(256, 3);
  options.loss_scale.max = 1024;
  auto session = session_of(mlp_bytes(false), options);
  std::vector<double> used;
  for (int i = 0; i < 10; ++i) used.push_back(session.step(batch()).loss_scale);
  EXPECT_EQ(used, (std::vector<double>{256, 256, 256, 512, 512, 512, 1024, 1024, 1024, 1024}));
}

TEST(LossScale, AnOverflowBeginsTheCountAnew) {
  auto session = session_of(mlp_bytes(false), scaled(65536, 3));
  session.step(batch());
  session.step(batch());
  EXPECT_TRUE(session.step(overflowing()).skipped);
  session.step(batch());
  session.step(batch());
  EXPECT_EQ(session.loss_scale(), 32768);
  session.step(batch());
  EXPECT_EQ(session.loss_scale(), 65536);
}

TEST(LossScale, WithoutGrowthItStays) {
  auto session = session_of(mlp_bytes(false), scaled(8, 0));
  for (int i = 0; i < 5; ++i) session.step(batch());
  EXPECT_EQ(session.loss_scale(), 8);
}

TEST(LossScale, WhatNoScaleCanMendIsAnErrorAtTheLeastScale) {
  auto session = session_of(mlp_bytes(false), scaled(4, 2000));
  std::vector<Tensor> wrong = batch();
  wrong[0].data<float>()[0] = NAN;
  const auto weights = session.weights();
  EXPECT_TRUE(session.step(wrong).skipped);
  EXPECT_TRUE(session.step(wrong).skipped);
  EXPECT_EQ(session.loss_scale(), 1);
  EXPECT_THROW(session.step(wrong), DataError);
  EXPECT_TRUE(same_tensors(session.weights(), weights));
}

TEST(LossScale, UpdatesAreThoseOfFloat32WhateverTheScale) {
  auto trained = [](const TrainingOptions& options) {
    auto session = session_of(mlp_bytes(false), options);
    for (int i = 0; i < 20; ++i) session.step(batch());
    return session.weights();
  };
  for (double clip : {0.0, 0.05}) {
    TrainingOptions wide = scaled(65536, 2000, "sgd");
    wide.precision = "fp32";
    wide.clip_norm = clip;
    const auto expected = trained(wide);
    for (double scale : {1.0, 256.0, 65536.0}) {
      TrainingOptions narrow = scaled(scale, 2000, "sgd");
      narrow.clip_norm = clip;
      for (const auto& [name, weight] : trained(narrow)) {
        for (int64_t i = 0; i < weight.size(); ++i) {
          EXPECT_NEAR(weight.data<float>()[i], expected.at(name).data<float>()[i], 2e-3)
              << name << " at scale " << scale << ", clip " << clip;
        }
      }
    }
  }
}

TEST(LossScale, SmallGradientsSurvive) {
  // Below 2^-24, float16 rounds to zero: without a scale the first layer would not change.
  TrainingOptions options = scaled(65536, 2000, "sgd");
  options.optimizer.lr = 1e5;
  options.optimizer.momentum = 0;
  auto moved = [&](double scale) {
    options.loss_scale.initial = scale;
    const std::string tiny = testing::model_bytes(R"(g (float[rows, 2] x) => (float loss)
      <float[2, 2] w = {1, 2, 3, 4}, float[2, 1] v = {1, 1}, float factor = {0.0000000037}>
      { h = MatMul(x, w) y = MatMul(h, v) z = Mul(y, factor) loss = ReduceSum<keepdims=0>(z) })");
    TrainingOptions own = options;
    own.loss = "";
    own.trainable = {"w"};
    auto session = session_of(tiny, own);
    const auto before = session.weights();
    while (session.step({random_tensor({4, 2}, 3)}).skipped) {
    }
    return !same_tensors(session.weights(), before);
  };
  EXPECT_TRUE(moved(65536));
  EXPECT_FALSE(moved(1));
}

TEST(LossScale, GradientsAreUnscaled) {
  auto narrow = session_of(mlp_bytes(false), scaled(65536, 2000));
  TrainingOptions options = scaled(65536, 2000);
  options.precision = "fp32";
  auto wide = session_of(mlp_bytes(false), options);
  const auto expected = wide.gradients(batch());
  for (const auto& [name, gradient] : narrow.gradients(batch())) {
    for (int64_t i = 0; i < gradient.size(); ++i) {
      EXPECT_NEAR(gradient.data<float>()[i], expected.at(name).data<float>()[i], 1e-3) << name;
    }
  }
}

using LossScaleFiles = testing::TempFolder;

TEST_F(LossScaleFiles, ACheckpointCarriesScaleAndCount) {
  auto session = session_of(mlp_bytes(false), scaled(65536, 4));
  session.step(overflowing());
  for (int i = 0; i < 3; ++i) session.step(batch());
  session.save_checkpoint(folder() / "c");
  auto again = session_of(mlp_bytes(false), scaled(65536, 4));
  again.load_checkpoint(folder() / "c");
  EXPECT_EQ(again.loss_scale(), 32768);
  again.step(batch());
  EXPECT_EQ(again.loss_scale(), 65536);  // the fourth clean step
  session.step(batch());
  EXPECT_TRUE(same_tensors(again.weights(), session.weights()));
  // A run in float32 loads the weights and ignores the rest.
  TrainingOptions options = scaled(65536, 4);
  options.precision = "fp32";
  auto wide = session_of(mlp_bytes(false), options);
  wide.load_checkpoint(folder() / "c");
  EXPECT_EQ(wide.loss_scale(), 1);
}

TEST(LossScale, RefusesSettingsThatCannotWork) {
  for (auto [initial, interval] : {std::pair{0.0, 1}, {1e30, 1}, {256.0, -1}, {NAN, 1}}) {
    EXPECT_THROW(session_of(mlp_bytes(false), scaled(initial, interval)), ModelError) << initial;
  }
  auto session = session_of(mlp_bytes(false), scaled(256, 1));
  session.set_loss_scale(4);
  EXPECT_EQ(session.step(batch()).loss_scale, 4);
  EXPECT_THROW(session.set_loss_scale(0.5), DataError);
  TrainingOptions options = scaled(256, 1);
  options.precision = "bf16";
  EXPECT_THROW(session_of(mlp_bytes(false), options).set_loss_scale(4), DataError);
}

}  // namespace
}  // namespace steep

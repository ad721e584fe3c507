// 16-bit weights: their float32 copies, and non-finite values.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "steep/error.h"
#include "train/models.h"

namespace steep {
namespace {

/// A tensor of numbers that bfloat16 can hold.
Tensor bf16(const std::vector<float>& values, Dims dims) {
  Tensor t = Tensor::empty(DType::bf16, std::move(dims));
  auto* bits = static_cast<uint16_t*>(t.data());
  for (const float v : values) *bits++ = static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16);
  return t;
}

float number(const Tensor& t) {
  uint16_t bits = 0;
  std::memcpy(&bits, t.data(), sizeof bits);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// y = x w in bfloat16, with w = 1, which the parser reads as bits.
TrainingSession session(double lr, TrainingOptions options = {}) {
  options.loss = "mse";
  options.optimizer = {.kind = "sgd", .lr = lr};
  const std::string bytes = testing::model_bytes(
      "g (bfloat16[1, 1] x) => (bfloat16[1, 1] y) <bfloat16[1, 1] w = {16256}> { y = MatMul(x, w) "
      "}");
  return TrainingSession(std::as_bytes(std::span(bytes)), options);
}

TEST(HalfWeights, SmallUpdatesAddUpInTheCopy) {
  TrainingSession kept = session(1e-4), lost = session(1e-4, {.master_weights = false});
  const Tensor one = bf16({1}, {1, 1}), zero = bf16({0}, {1, 1});
  for (int i = 0; i < 20; ++i) {
    kept.step({one, zero});
    lost.step({one, zero});
  }
  // 20 steps of 2e-4; the bfloat16 number next to 1 is 1 - 2⁻⁸.
  EXPECT_NEAR(*kept.state("master/w").data<float>(), 0.996, 1e-4);
  EXPECT_EQ(number(kept.state("w")), 1 - 0x1p-8F);
  EXPECT_EQ(number(lost.state("w")), 1);
  EXPECT_EQ(kept.optimizer_state_names(), std::vector<std::string>{"master/w"});
  EXPECT_TRUE(lost.optimizer_state_names().empty());
}

TEST(HalfWeights, WhatIsSetCounts) {
  TrainingSession s = session(1e-4);
  const Tensor one = bf16({1}, {1, 1}), zero = bf16({0}, {1, 1});
  s.step({one, zero});
  s.set_weights({{"w", bf16({4}, {1, 1})}});
  s.step({zero, zero});
  EXPECT_EQ(number(s.state("w")), 4);
  EXPECT_EQ(*s.state("master/w").data<float>(), 4);
}

TEST(HalfWeights, AnUpdateThatIsNotFiniteIsNeverDone) {
  TrainingSession s = session(3e38, {.check_finite = true});  // times 2, infinite in float32
  const Tensor one = bf16({1}, {1, 1}), zero = bf16({0}, {1, 1});
  EXPECT_THROW(s.step({one, zero}), DataError);
  EXPECT_EQ(s.step_count(), 0);
  EXPECT_THROW(s.export_onnx_bytes(), DataError);
}

TEST(HalfWeights, RoundingAtRandomIsWithoutCopies) {
  EXPECT_THROW(session(1e-4, {.stochastic_rounding = true}), ModelError);
}

}  // namespace
}  // namespace steep

// Floats of 8 bits with a scale for each block.
#include "data/block_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace steep::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Numbers of many magnitudes in each block.
Tensor numbers(int64_t size, bool negative) {
  std::mt19937 random(static_cast<uint32_t>(size));
  std::uniform_real_distribution<float> exponent(-20, 5), mantissa(1, 2);
  Tensor x = Tensor::zeros(DType::f32, {size});
  for (int64_t i = 0; i < size; ++i) {
    const float sign = negative && random() % 2 == 0 ? -1 : 1;
    x.data<float>()[i] = sign * mantissa(random) * std::exp2(std::floor(exponent(random)));
  }
  return x;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.data(), b.data(), a.nbytes()) == 0;
}

TEST(BlockFloat, NumbersAreNearAndCodesAreExact) {
  for (const DType codes : {DType::i8, DType::u8}) {
    for (const int64_t size : {0, 1, 255, 256, 257, 5000}) {
      const Tensor x = numbers(size, codes == DType::i8);
      const BlockFloats kept = narrowed(x, codes);
      EXPECT_EQ(kept.codes.dtype(), codes);
      EXPECT_EQ(kept.scales.dims(), Dims{float_blocks(size)});
      const Tensor y = widened(kept);
      for (int64_t i = 0; i < size; ++i) {
        const float scale = kept.scales.data<float>()[i / kBlockFloats];
        EXPECT_TRUE(is_float8_scale(scale));
        const float exact = x.data<float>()[i], near = y.data<float>()[i];
        const float least = scale * (codes == DType::i8 ? 0x1p-17F : 0x1p-33F);
        EXPECT_LE(std::abs(near - exact), std::abs(exact) / 16 + least);
      }
      EXPECT_TRUE(same_bits(widened(narrowed(y, codes)), y));
    }
  }
}

TEST(BlockFloat, InfinityAndNanStayAlone) {
  Tensor x = numbers(300, true);
  x.data<float>()[7] = kInfinity;
  x.data<float>()[8] = -kInfinity;
  x.data<float>()[9] = std::nanf("");
  const Tensor y = widened(narrowed(x, DType::i8));
  EXPECT_EQ(y.data<float>()[7], kInfinity);
  EXPECT_EQ(y.data<float>()[8], -kInfinity);
  EXPECT_TRUE(std::isnan(y.data<float>()[9]));
  for (int64_t i = 10; i < 300; ++i) EXPECT_TRUE(std::isfinite(y.data<float>()[i]));
}

TEST(BlockFloat, SquaresDoNotVanishAndAreNotNegative) {
  const Tensor x = Tensor::from<float>({1.0F, 1e-30F, 0.0F, -1.0F, -0.0F}, {5});
  const Tensor y = widened(narrowed(x, DType::u8));
  EXPECT_EQ(y.data<float>()[0], 1);
  EXPECT_EQ(y.data<float>()[1], 0x1p-32F);
  EXPECT_EQ(y.data<float>()[2], 0);
  EXPECT_TRUE(std::isnan(y.data<float>()[3]));
  EXPECT_EQ(y.data<float>()[4], 0);
}

TEST(BlockFloat, TheGreatestNumbersStayFinite) {
  const float greatest = std::numeric_limits<float>::max();
  for (const float x : {greatest, 1.9F, 1.99F, 1e-38F, 0.0F}) {
    for (const DType codes : {DType::i8, DType::u8}) {
      const Tensor y = widened(narrowed(Tensor::from<float>({x}, {1}), codes));
      EXPECT_TRUE(std::isfinite(y.data<float>()[0]));
      const float least = x > 1 ? x : 1e-26F;  // below the least scale numbers lose bits
      EXPECT_NEAR(y.data<float>()[0], x, 0.07 * least);
    }
  }
}

TEST(BlockFloat, AScaleOfZeroMeansZeros) {
  const Tensor codes = Tensor::from<uint8_t>({0, 1, 200}, {3});
  const Tensor y = widened({codes, Tensor::zeros(DType::f32, {1})});
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(y.data<float>()[i], 0);
  for (const float bad : {3.0F, -1.0F, 0x1p-100F, kInfinity, std::nanf("")})
    EXPECT_FALSE(is_float8_scale(bad));
}

}  // namespace
}  // namespace steep::test

// Activations after batch normalisations: which are taken in, and that results keep their bits.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "device/device.h"
#include "passes/batch_norm_graph.h"
#include "passes/pipeline.h"
#include "passes/run_graph.h"

namespace steep {
namespace {

using testing::BatchNormGraph;
using testing::count;
using testing::results;

Graph fused(const Graph& g) {
  Graph copy = g;
  fuse_batch_norm(copy, Devices::host_alone());
  copy.prune();
  verify(copy, "the test");
  return copy;
}

/// How many nodes of the operator have an activation.
int count_active(const Graph& g, std::string_view op) {
  int n = 0;
  for (Node node : g.nodes())
    n += node.op() == op && !node.attrs().string("activation", "").empty();
  return n;
}

Type images(DType dtype, int64_t height) { return {dtype, Shape{3, 7, height, 5}}; }

template <typename T>
Tensor of_type(const Tensor& t) {
  Tensor converted = Tensor::empty(std::is_same_v<T, float> ? DType::f32 : DType::f64, t.dims());
  std::copy_n(t.data<float>(), t.size(), converted.data<T>());
  return converted;
}

/// Normalised values at 0, -0, 6 and NaN, beside random ones.
template <typename T>
std::vector<Tensor> inputs_at_bounds(const Graph& g) {
  std::vector<Tensor> inputs;
  for (const Tensor& t : testing::inputs_of(g)) inputs.push_back(of_type<T>(t));
  T *x = inputs[0].data<T>(), *scale = inputs[1].data<T>(), *bias = inputs[2].data<T>();
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const int64_t plane = inputs[0].dims()[2] * inputs[0].dims()[3];
  for (int c = 0; c < 4; ++c) scale[c] = c == 3 ? nan : 0;
  bias[0] = 0;
  bias[1] = -T{0};
  bias[2] = 6;
  x[4 * plane + 3] = nan;  // and so the whole channel
  scale[5] = 8;            // beyond both bounds
  return inputs;
}

template <typename T>
void expect_same_bits(const Graph& g) {
  using Bits = std::conditional_t<std::is_same_v<T, float>, uint32_t, uint64_t>;
  const std::vector<Tensor> inputs = inputs_at_bounds<T>(g);
  const auto with = results(Program(g), inputs);
  const auto without = results(Program(g, {.disabled_passes = {"fuse_batch_norm"}}), inputs);
  ASSERT_EQ(with.size(), without.size());
  for (size_t i = 0; i < with.size(); ++i) {
    ASSERT_EQ(with[i].dims(), without[i].dims());
    for (int64_t k = 0; k < with[i].size(); ++k) {
      const T a = with[i].data<T>()[k], b = without[i].data<T>()[k];
      ASSERT_TRUE(std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b) ||
                  (std::isnan(a) && std::isnan(b)))
          << "output " << i << ", element " << k << ": " << a << ", " << b;
    }
  }
}

class FuseBatchNorm : public ::testing::TestWithParam<const char*> {};

TEST_P(FuseBatchNorm, TakesInTheActivationAndItsGradient) {
  const BatchNormGraph made(GetParam(), images(DType::f32, 5));
  const Graph g = fused(made.g);
  EXPECT_EQ(count_active(g, "steep.BatchNorm"), 1) << to_text(g);
  EXPECT_EQ(count_active(g, "steep.BatchNormGrad"), 1) << to_text(g);
  EXPECT_EQ(g.node_count(), 2U) << to_text(g);
  EXPECT_EQ(fused(g).node_count(), 2U);
}

TEST_P(FuseBatchNorm, KeepsTheBits) {
  expect_same_bits<float>(BatchNormGraph(GetParam(), images(DType::f32, 5)).g);
  expect_same_bits<double>(BatchNormGraph(GetParam(), images(DType::f64, 5)).g);
}

TEST_P(FuseBatchNorm, LeavesTheActivationIfOthersReadItsOperand) {
  BatchNormGraph made(GetParam(), images(DType::f32, 5));
  made.g.add_output("z", made.z);
  const Graph g = fused(made.g);
  EXPECT_EQ(count_active(g, "steep.BatchNorm"), 0);
  EXPECT_EQ(count_active(g, "steep.BatchNormGrad"), 1);
  expect_same_bits<float>(made.g);
}

TEST_P(FuseBatchNorm, LeavesShortPlanesAndEmptyBatches) {
  for (const int64_t height : {int64_t{1}, int64_t{0}}) {
    const BatchNormGraph made(GetParam(), images(DType::f32, height));
    EXPECT_EQ(count_active(fused(made.g), "steep.BatchNorm"), 0);
    EXPECT_EQ(count_active(fused(made.g), "steep.BatchNormGrad"), 0);
  }
  const BatchNormGraph none(GetParam(), {DType::f32, Shape{0, 2, 4, 4}});
  EXPECT_EQ(count_active(fused(none.g), "steep.BatchNorm"), 0);
}

TEST_P(FuseBatchNorm, LeavesItsGradientIfOthersReadThat) {
  BatchNormGraph made(GetParam(), images(DType::f32, 5));
  for (Node n : made.g.nodes()) {
    if (n.op() == "steep.BatchNormGrad") made.g.add_output("dz", n.input(0));
  }
  EXPECT_EQ(count_active(fused(made.g), "steep.BatchNormGrad"), 0);
  expect_same_bits<float>(made.g);
}

INSTANTIATE_TEST_SUITE_P(Curves, FuseBatchNorm, ::testing::Values("Relu", "Clip", "Hardtanh"));

TEST(FuseBatchNormOnce, LeavesASecondActivation) {
  BatchNormGraph made("Clip", images(DType::f32, 5));
  Graph g = fused(made.g);
  Value y = g.outputs().back().value;
  g.add_output("relu", apply("Relu", {y}));
  std::vector<Output> outputs = g.outputs();
  outputs.erase(outputs.end() - 2);
  g.set_outputs(outputs);
  EXPECT_EQ(count(fused(g), "Relu"), 1);
}

TEST(FuseBatchNormOnce, LeavesBoundsInTheWrongOrder) {
  Graph g;
  const Type channels{DType::f32, Shape{7}};
  const Value x = g.add_input("x", images(DType::f32, 5)), s = g.add_input("s", channels);
  const Value low = scalar(g, 6, DType::f32), high = scalar(g, 0, DType::f32);
  g.add_output("y", apply("Clip", {batch_norm(x, s, s, 1e-3).y, low, high}));
  EXPECT_EQ(count(fused(g), "Clip"), 1);
}

}  // namespace
}  // namespace steep

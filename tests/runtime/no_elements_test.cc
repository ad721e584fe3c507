// Values without elements cost no time, whatever their number.
#include <gtest/gtest.h>

#include <chrono>

#include "ops/build.h"
#include "program/program.h"

namespace steep {
namespace {

TEST(Empty, ManyPlanesOfNothingAreNotVisited) {
  Graph g;
  const Type type{DType::f32, Shape{INT32_MAX, 0, 4}};
  Value x = g.add_input("x", type);
  g.add_output("y", apply("LRN", {x}, {{"size", int64_t{1}}}));
  g.add_output("s", apply("Softmax", {x}, {{"axis", int64_t{1}}}));
  const Tensor in = Tensor::empty(DType::f32, {INT32_MAX, 0, 4});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(evaluate(g, std::span(&in, 1))[0].size(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace steep

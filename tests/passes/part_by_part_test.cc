// The pass part_by_part: large arrays in parts, and the loss over scores in parts.
#include "passes/part_by_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "autodiff/gradient.h"
#include "device/device.h"
#include "ops/build.h"
#include "passes/run_graph.h"
#include "passes/specialise.h"
#include "program/program.h"

namespace steep {
namespace {

using testing::after;
using testing::count;
using testing::inputs_of;
using testing::matrix;
using testing::random_tensor;
using testing::results;

/// A large array that is made of three products, and its gradient, which is divided among three.
Graph whole_of_parts() {
  Graph g;
  const Value x = g.add_input("x", matrix(600, 8));
  std::vector<Value> parts, tables;
  for (const char* name : {"a", "b", "c"}) {
    tables.push_back(g.add_input(name, matrix(8, 3000)));
    parts.push_back(matmul(x, tables.back()));
  }
  const Value whole = apply("Softmax", {concat(parts, 1)}, {{"axis", int64_t{1}}});
  const std::vector<Value> back =
      apply_n("Split", std::vector{whole, ints(g, {3000, 3000, 3000})}, 3, {{"axis", int64_t{1}}});
  for (size_t i = 0; i < back.size(); ++i)
    g.add_output("y", matmul(back[i], transpose(tables[i], {1, 0})));
  return g;
}

TEST(PartByPart, KeepsOnePartBesideTheWhole) {
  const Graph g = whole_of_parts();
  const auto arena = [&](const std::set<std::string>& disabled) {
    std::vector<Type> types;
    for (Value v : g.inputs()) types.push_back(v.type());
    return Program(g, {.disabled_passes = disabled}).plan(types).arena_bytes;
  };
  constexpr size_t kWhole = size_t{600} * 9000 * 4;
  EXPECT_GE(arena({"part_by_part"}), 2 * kWhole);
  EXPECT_LT(arena({}), kWhole * 15 / 10);
}

TEST(PartByPart, GivesTheSameBits) {
  const Graph g = whole_of_parts();
  const std::vector<Tensor> inputs = inputs_of(g);
  const auto with = results(Program(g), inputs);
  const auto without = results(Program(g, {.disabled_passes = {"part_by_part"}}), inputs);
  for (size_t i = 0; i < with.size(); ++i)
    EXPECT_EQ(std::memcmp(with[i].data(), without[i].data(), with[i].nbytes()), 0);
}

TEST(PartByPart, LeavesPartsThatOthersRead) {
  Graph g;
  const Value x = g.add_input("x", matrix(2100, 1000));
  const Value part = tanh(x);
  g.add_output("part", part);
  g.add_output("y", sum(concat({part, exp(x)}, 1), {}, false));
  EXPECT_EQ(count(after(g, part_by_part), "Concat"), 1);
}

/// The cross entropy of scores in three unequal parts, and its gradients.
Graph loss_of_parts(const Attrs& attrs) {
  constexpr int64_t kRows = 600;
  Graph g;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < kRows; ++i)
    labels.push_back(attrs.has("ignore_index") && i % 3 == 0 ? -100 : i * 17 % 9000);
  const Value t = g.add_constant(Tensor::from(labels, {kRows}));
  const Value x = g.add_input("x", {DType::f32, Shape{2, kRows / 2, 8}});
  std::vector<Value> parts, sources{x};
  for (int64_t columns : {2000, 3000, 4000}) {
    sources.push_back(g.add_input("w" + std::to_string(columns), matrix(8, columns)));
    parts.push_back(matmul(x, sources.back()));
  }
  const Value whole = reshape(concat(parts, 2), {kRows, 9000});
  const Value loss = apply_n("steep.SoftmaxCrossEntropy", std::vector{whole, t}, 3, attrs)[0];
  g.add_output("loss", loss);
  const Value one = g.add_gradient_input("dloss", loss);
  for (Value d : add_gradients(g, std::vector{loss}, std::vector{one}, sources))
    g.add_output(d.name(), d, Phase::backward);
  return g;
}

TEST(PartByPart, NeedsNoWholeOfTheScoresForTheirLoss) {
  for (const char* reduction : {"mean", "sum", "none"}) {
    for (const bool ignores : {false, true}) {
      SCOPED_TRACE(std::string(reduction) + (ignores ? ", some rows count" : ""));
      Attrs attrs{{"reduction", reduction}};
      if (ignores) attrs.set("ignore_index", int64_t{-100});
      const Graph g = loss_of_parts(attrs);
      std::vector<Type> types;
      for (Value v : g.inputs()) types.push_back(v.type());
      const Graph parts =
          after(specialise_known(g, types, Devices::host_alone()).graph, part_by_part);
      EXPECT_EQ(count(parts, "steep.SoftmaxCrossEntropy"), 3) << to_text(parts);
      EXPECT_EQ(count(parts, "steep.SoftmaxCrossEntropyGrad"), 3) << to_text(parts);
      EXPECT_EQ(count(parts, "Concat") + count(parts, "steep.SetPart"), 0) << to_text(parts);
      std::vector<Tensor> inputs = inputs_of(g);
      const Dims dims = g.outputs()[0].value.type().dims();
      const auto run = [&](const std::set<std::string>& disabled) {
        Program program(g, {.disabled_passes = disabled});
        const Tensor dloss = random_tensor(dims, 9);
        ForwardResult result = program.forward(inputs);
        for (Tensor& d : program.backward(std::move(result.pending), std::span(&dloss, 1)))
          result.outputs.push_back(std::move(d));
        return std::move(result.outputs);
      };
      inputs.resize(4);
      const auto with = run({}), without = run({"part_by_part"});
      ASSERT_EQ(with.size(), 5U);
      for (size_t i = 0; i < with.size(); ++i) {
        double difference = 0, size = 0;
        for (int64_t k = 0; k < with[i].size(); ++k) {
          const double a = with[i].data<float>()[k], b = without[i].data<float>()[k];
          difference = std::max(difference, std::abs(a - b));
          size = std::max(size, std::abs(b));
        }
        EXPECT_LE(difference, 2e-6 * size) << "result " << i;
      }
    }
  }
}

/// Small losses keep their digits: the label has nearly all of the probability.
TEST(PartByPart, KeepsTheDigitsOfSmallLosses) {
  constexpr int64_t kRows = 600;
  Graph g;
  std::vector<Value> parts;
  for (const char* name : {"a", "b"}) parts.push_back(g.add_input(name, matrix(kRows, 4000)) * 1.0);
  const Value t = g.add_constant(Tensor::from(std::vector<int64_t>(kRows, 5000), {kRows}));
  g.add_output("loss", apply_n("steep.SoftmaxCrossEntropy", std::vector{concat(parts, 1), t}, 3,
                               {{"reduction", "none"}})[0]);
  std::vector<Tensor> inputs{Tensor::zeros(DType::f32, {kRows, 4000}),
                             Tensor::zeros(DType::f32, {kRows, 4000})};
  for (int64_t i = 0; i < kRows; ++i)
    inputs[1].data<float>()[i * 4000 + 1000] = 0.1F * static_cast<float>(i);
  const auto with = results(Program(g), inputs);
  const auto without = results(Program(g, {.disabled_passes = {"part_by_part"}}), inputs);
  for (int64_t i = 0; i < kRows; ++i) {
    const float a = with[0].data<float>()[i], b = without[0].data<float>()[i];
    ASSERT_NEAR(a, b, 2e-6F * b) << "row " << i;
  }
}

/// The scores of masked classes are -inf, and those of a whole part may be. The label is in part 1.
TEST(PartByPart, TakesInfiniteScoresAsTheWholeDoes) {
  constexpr int64_t kRows = 600, kClasses = 4000, kLabel = 5000;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Graph g;
  std::vector<Value> negatives, parts;
  for (const char* name : {"a", "b"}) {
    negatives.push_back(g.add_input(name, matrix(kRows, kClasses)));
    parts.push_back(-negatives.back());
  }
  const Value t = g.add_constant(Tensor::from(std::vector<int64_t>(kRows, kLabel), {kRows}));
  const Value loss = apply_n("steep.SoftmaxCrossEntropy", std::vector{concat(parts, 1), t}, 3,
                             {{"reduction", "none"}})[0];
  g.add_output("loss", loss);
  const Value one = g.add_gradient_input("dloss", loss);
  for (Value d : add_gradients(g, std::vector{loss}, std::vector{one}, negatives))
    g.add_output(d.name(), d, Phase::backward);

  std::vector<Tensor> inputs{random_tensor({kRows, kClasses}, 1),
                             random_tensor({kRows, kClasses}, 2)};
  const auto fill = [&](size_t part, int64_t row, float score) {
    std::fill_n(inputs[part].data<float>() + row * kClasses, kClasses, -score);
  };
  for (int64_t row = 0; row < kRows; row += 6) {
    fill(1, row, -kInfinity);  // the label has no probability: the loss is infinite
    fill(0, row + 1, -kInfinity);
    inputs[1].data<float>()[(row + 2) * kClasses + kLabel - kClasses] = kInfinity;
    for (const size_t part : {0, 1}) fill(part, row + 3, -kInfinity);  // no softmax: NaN
    inputs[0].data<float>()[(row + 4) * kClasses] = -kInfinity;
  }
  const Tensor dloss = random_tensor({kRows}, 9);
  const auto run = [&](const std::set<std::string>& disabled) {
    Program program(g, {.disabled_passes = disabled});
    ForwardResult result = program.forward(inputs);
    for (Tensor& d : program.backward(std::move(result.pending), std::span(&dloss, 1)))
      result.outputs.push_back(std::move(d));
    return std::move(result.outputs);
  };
  std::vector<Type> types;
  for (Value v : g.inputs()) types.push_back(v.type());
  const Graph divided =
      after(specialise_known(g, types, Devices::host_alone()).graph, part_by_part);
  ASSERT_EQ(count(divided, "steep.SoftmaxCrossEntropyGrad"), 2) << to_text(divided);
  const auto with = run({}), without = run({"part_by_part"});
  EXPECT_EQ(with[0].data<float>()[0], kInfinity);
  for (size_t i = 0; i < with.size(); ++i) {
    for (int64_t k = 0; k < with[i].size(); ++k) {
      const float a = with[i].data<float>()[k], b = without[i].data<float>()[k];
      ASSERT_TRUE(std::isnan(a) ? std::isnan(b)
                                : a == b || std::abs(a - b) < 2e-6F * (1 + std::abs(b)))
          << "result " << i << ", element " << k << ": " << a << ", not " << b;
    }
  }
}

}  // namespace
}  // namespace steep

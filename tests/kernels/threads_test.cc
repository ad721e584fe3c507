// Results are bit-identical for any number of threads, wherever the range of a thread begins and
// ends: with lengths that are no multiple of a vector, forward and backward.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <onnx/defs/schema.h>

#include <functional>

#include "autodiff/gradient.h"
#include "kernels/run_kernel.h"
#include "ops/build.h"
#include "ops/op_def.h"
#include "program/program.h"

namespace steep {
namespace {

using Build = std::function<Value(Graph& g, const std::vector<Value>& x)>;

/// The results of a graph made by `build`, and the gradients of its float inputs, from a new
/// program.
std::vector<Tensor> results(const std::vector<Dims>& dims, const Build& build, int threads,
                            bool backward) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  struct Restore {
    int threads;
    ~Restore() { omp_set_num_threads(threads); }
  } restore{before};
  Graph g;
  std::vector<Value> x;
  std::vector<Tensor> fed;
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto seed = static_cast<uint32_t>(i) + 1;
    fed.push_back(test::random_tensor(DType::f32, dims[i], seed));
    x.push_back(g.add_input(fmt::format("x{}", i), {DType::f32, to_shape(dims[i])}));
  }
  const Value y = build(g, x);
  g.add_output("y", y);
  Tensor seed = test::random_tensor(DType::f32, y.type().dims(), 99);
  if (backward) {
    const Value dy = g.add_gradient_input("dy", y);
    for (Value dx : add_gradients(g, std::vector{y}, std::vector{dy}, x)) {
      if (dx) g.add_output("dx", dx, Phase::backward);
    }
  }
  Program program(std::move(g));
  ForwardResult run = program.forward(fed);
  std::vector<Tensor> all = std::move(run.outputs);
  if (run.pending) {
    for (Tensor& t : program.backward(std::move(run.pending), {&seed, 1}))
      all.push_back(std::move(t));
  }
  return all;
}

/// Compares 1, 2 and 3 threads. `name` is used in messages.
void expect_alike(const std::string& name, const std::vector<Dims>& dims, const Build& build,
                  bool backward = true) {
  SCOPED_TRACE(fmt::format("{} on {}", name, to_string(dims[0])));
  const std::vector<Tensor> one = results(dims, build, 1, backward);
  for (int threads : {2, 3}) {
    SCOPED_TRACE(fmt::format("{} threads", threads));
    const std::vector<Tensor> many = results(dims, build, threads, backward);
    ASSERT_EQ(one.size(), many.size());
    for (size_t i = 0; i < one.size(); ++i) test::expect_same_bits(one[i], many[i]);
  }
}

const int64_t kLengths[] = {1001, 4099, 70001};

TEST(Threads, ElementwiseOperators) {
  int compared = 0;
  for (const OpDef* def : all_ops()) {
    const auto* schema = onnx::OpSchemaRegistry::Schema(std::string(def->name));
    if (!def->elementwise || schema == nullptr) continue;
    const auto operands = static_cast<size_t>(std::max(schema->min_input(), 1));
    // Only ops on floats; the others only move bits.
    const auto accepts = [&](size_t i) {
      return schema->inputs()[std::min(i, schema->inputs().size() - 1)].GetTypes().count(
                 onnx::Utils::DataTypeUtils::ToType("tensor(float)")) != 0;
    };
    bool floats = true;
    for (size_t i = 0; i < operands; ++i) floats = floats && accepts(i);
    if (!floats || def->name == "Cast" || def->name == "QuantizeLinear") continue;
    const Build build = [&](Graph&, const std::vector<Value>& x) {
      const Value y = steep::apply(std::string(def->name), x);
      return y.dtype() == DType::f32 ? y : cast(y, DType::f32);
    };
    for (int64_t n : kLengths)
      expect_alike(std::string(def->name), std::vector<Dims>(operands, Dims{n}), build);
    ++compared;
  }
  EXPECT_GE(compared, 50);
}

TEST(Threads, ChainsOfElementwiseOperators) {
  for (int64_t n : kLengths) {
    expect_alike("gelu", {{n}}, [](Graph&, const std::vector<Value>& x) {
      return 0.5 * x[0] * (1.0 + tanh(0.79788 * (x[0] + 0.044715 * (x[0] * x[0] * x[0]))));
    });
    expect_alike("lerp", {{n}, {n}, {n}}, [](Graph&, const std::vector<Value>& x) {
      return x[0] * x[1] + (1.0 - x[0]) * x[2] - x[1] / (1.5 + x[2] * x[2]);
    });
    expect_alike("row", {{7, n}, {n}, {7, 1}}, [](Graph&, const std::vector<Value>& x) {
      return exp(x[0] * x[1] + x[2]) * x[2] - x[0];
    });
  }
}

std::vector<Dims> with_scale(const Dims& x, int64_t channels) {
  return {x, {channels}, {channels}};
}

TEST(Threads, Normalisations) {
  for (const Dims& x : {Dims{71, 1001}, Dims{17, 4099}, Dims{3, 70001}, Dims{70001, 3}}) {
    for (const char* op : {"Softmax", "LogSoftmax", "LpNormalization", "Hardmax"}) {
      for (int64_t axis : {0, 1}) {
        expect_alike(op, {x}, [&](Graph&, const std::vector<Value>& v) {
          return steep::apply(op, {v[0]}, {{"axis", axis}});
        });
      }
    }
    expect_alike("LayerNormalization", with_scale(x, x[1]),
                 [](Graph&, const std::vector<Value>& v) {
                   return apply_n("LayerNormalization", v, 3, {{"axis", int64_t{-1}}})[0];
                 });
    expect_alike("SoftmaxCrossEntropyLoss", {x}, [&](Graph& g, const std::vector<Value>& v) {
      Ints labels;
      for (int64_t i = 0; i < x[0]; ++i) labels.push_back(i * 7 % x[1]);
      return steep::apply("SoftmaxCrossEntropyLoss", {v[0], ints(g, labels)});
    });
  }
  for (const Dims& x : {Dims{3, 7, 1001}, Dims{2, 3, 4099}, Dims{1, 3, 70001}}) {
    expect_alike("InstanceNormalization", with_scale(x, x[1]),
                 [](Graph&, const std::vector<Value>& v) {
                   return steep::apply("InstanceNormalization", v);
                 });
    expect_alike(
        "BatchNormalization", with_scale(x, x[1]), [&](Graph& g, const std::vector<Value>& v) {
          const Value mean = g.add_constant(Tensor::zeros(DType::f32, {x[1]}));
          const Value variance = expand_like(scalar(g, 1, DType::f32), mean);
          return apply_n("BatchNormalization", std::vector{v[0], v[1], v[2], mean, variance}, 3,
                         {{"training_mode", int64_t{1}}})[0];
        });
    expect_alike("LRN", {x}, [](Graph&, const std::vector<Value>& v) {
      return steep::apply("LRN", {v[0]}, {{"size", int64_t{3}}});
    });
  }
}

TEST(Threads, Reductions) {
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd",
                         "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"}) {
    for (const Dims& x : {Dims{71, 1001}, Dims{17, 4099}, Dims{3, 70001}, Dims{70001, 3}}) {
      for (const Ints& axes : {Ints{0}, Ints{1}, Ints{0, 1}}) {
        expect_alike(op, {x}, [&](Graph& g, const std::vector<Value>& v) {
          return steep::apply(op, {v[0], ints(g, axes)});
        });
      }
    }
  }
  for (int64_t n : kLengths) {
    expect_alike("CumSum", {{3, n}}, [](Graph& g, const std::vector<Value>& v) {
      return steep::apply("CumSum", {v[0], g.add_constant(Tensor::scalar(int64_t{1}))});
    });
    expect_alike("broadcast", {{3, n}, {1, n}, {3, 1}},
                 [](Graph&, const std::vector<Value>& v) { return v[0] * v[1] * v[2]; });
  }
}

}  // namespace
}  // namespace steep

// Small graphs for tests of passes: their inputs, a pass alone, and the results of a run.
#pragma once

#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "program/program.h"

namespace steep::testing {

inline Type matrix(int64_t rows, int64_t columns) { return {DType::f32, Shape{rows, columns}}; }

inline Tensor random_tensor(const Dims& dims, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor t = Tensor::empty(DType::f32, dims);
  for (int64_t i = 0; i < t.size(); ++i) t.data<float>()[i] = normal(random);
  return t;
}

inline std::vector<Tensor> inputs_of(const Graph& g) {
  std::vector<Tensor> inputs;
  for (Value v : g.inputs())
    inputs.push_back(random_tensor(v.type().dims(), static_cast<uint32_t>(inputs.size()) + 1));
  return inputs;
}

inline int count(const Graph& g, std::string_view op) {
  int n = 0;
  for (Node node : g.nodes()) n += node.op() == op;
  return n;
}

/// All outputs, those of backward last.
inline std::vector<Tensor> results(Program program, std::span<const Tensor> inputs) {
  ForwardResult run = program.forward(inputs);
  if (!run.pending) return run.outputs;
  for (Tensor& t : program.backward(std::move(run.pending), {}))
    run.outputs.push_back(std::move(t));
  return run.outputs;
}

/// The graph after one pass, verified.
inline Graph after(Graph g, void (*pass)(Graph&)) {
  pass(g);
  g.prune();
  verify(g, "the test");
  return g;
}

}  // namespace steep::testing

// Recurrent layers by oneDNN against Steep's own kernels, which the tables of tests/ops check in
// double precision.

#include "run_kernel.h"

namespace steep {
namespace {

using test::expect_same_bits;
using test::Out;
using test::random_tensor;
using test::run_kernel;

struct Case {
  std::string cell;
  int64_t steps, batch, input, hidden;
  std::string direction = "forward";
  Attrs attrs{};
  bool bias = true, h0 = false, c0 = false;
};

// One step, one sequence, one unit; extents that are no multiple of a vector; sums of more than 512
// terms, which oneDNN may divide among threads.
std::vector<Case> cases() {
  std::vector<Case> all;
  const Attrs reset = {{"linear_before_reset", int64_t{1}}};
  const Attrs relu = {{"activations", Strings{"Relu"}}};
  const Attrs both_relu = {{"activations", Strings{"Relu", "Relu"}}};
  const std::vector<std::pair<std::string, Attrs>> cells = {
      {"LSTM", {}}, {"GRU", {}}, {"GRU", reset}, {"RNN", {}}};
  for (const auto& [cell, attrs] : cells) {
    all.push_back({cell, 1, 1, 1, 1, "forward", attrs});
    all.push_back({cell, 1, 3, 5, 7, "bidirectional", attrs, true, true, true});
    all.push_back({cell, 5, 1, 4, 17, "reverse", attrs, false, true});
    all.push_back({cell, 7, 4, 33, 19, "bidirectional", attrs});
    all.push_back({cell, 35, 20, 40, 48, "forward", attrs, true, true, true});
    all.push_back({cell, 3, 2, 600, 520, "forward", attrs});
    all.push_back({cell, 80, 16, 24, 32, "forward", attrs});
    Attrs by_batch = attrs;
    by_batch.set("layout", int64_t{1});
    all.push_back({cell, 6, 3, 5, 8, "bidirectional", by_batch, true, true});
    all.push_back({cell, 6, 3, 5, 8, "reverse", by_batch, true, true, true});
  }
  all.push_back({"RNN", 4, 3, 5, 6, "reverse", relu});
  all.push_back({"RNN", 4, 3, 5, 6, "bidirectional", both_relu});
  return all;
}

struct Problem {
  std::vector<Tensor> inputs;
  std::vector<Out> outputs, gradients;
  std::vector<Tensor> dy;
  Attrs attrs;
};

Problem problem(const Case& c) {
  const bool lstm = c.cell == "LSTM", by_batch = c.attrs.integer("layout", 0) != 0;
  const int64_t d = c.direction == "bidirectional" ? 2 : 1, h = c.hidden;
  const int64_t width = (lstm ? 4 : c.cell == "GRU" ? 3 : 1) * h;
  const Dims state = by_batch ? Dims{c.batch, d, h} : Dims{d, c.batch, h};
  const Dims x = by_batch ? Dims{c.batch, c.steps, c.input} : Dims{c.steps, c.batch, c.input};
  const Dims y = by_batch ? Dims{c.batch, c.steps, d, h} : Dims{c.steps, d, c.batch, h};
  uint32_t seed = 0;
  auto random = [&](const Dims& dims, bool present, double scale) {
    return present ? random_tensor(DType::f32, dims, ++seed, scale) : Tensor();
  };
  const double scale = 1 / std::sqrt(static_cast<double>(h));
  Problem p;
  p.inputs = {random(x, true, 1),
              random({d, width, c.input}, true, scale),
              random({d, width, h}, true, scale),
              random({d, 2 * width}, c.bias, scale),
              Tensor(),
              random(state, c.h0, 1),
              random(state, c.c0 && lstm, 1),
              Tensor()};
  for (size_t i = 0; i < 8; ++i) {
    if (i == 4) continue;
    const bool present = p.inputs[i].defined();
    p.gradients.push_back({DType::f32, present ? p.inputs[i].dims() : Dims{0}});
  }
  p.outputs = {{DType::f32, y}, {DType::f32, state}};
  if (lstm) p.outputs.push_back({DType::f32, state});
  p.dy = {random(y, true, 1), random(state, c.h0, 1), random(state, c.c0 && lstm, 1)};
  p.attrs = c.attrs;
  p.attrs.set("hidden_size", h);
  p.attrs.set("direction", c.direction);
  return p;
}

void compare(std::string_view op, const std::vector<Tensor>& inputs,
             const std::vector<Out>& outputs, const Attrs& attrs, double tolerance) {
  const auto two = run_kernel(op, inputs, outputs, attrs, {.threads = 2, .candidate = "onednn"});
  const auto again = run_kernel(op, inputs, outputs, attrs, {.threads = 2, .only = "onednn"});
  const auto one = run_kernel(op, inputs, outputs, attrs, {.threads = 1, .only = "onednn"});
  const auto ours = run_kernel(op, inputs, outputs, attrs, {.only = "gemm"});
  for (size_t i = 0; i < outputs.size(); ++i) {
    SCOPED_TRACE(std::string(op) + " " + std::to_string(i));
    if (ours[i].size() == 0) continue;
    test::expect_close(two[i], test::values(ours[i]), tolerance, tolerance);
    expect_same_bits(two[i], again[i]);
    const bool weights = outputs.size() == 7 && (i == 1 || i == 2);  // oneDNN sums them by thread
    if (!weights && !test::products_depend_on_threads()) expect_same_bits(two[i], one[i]);
    test::expect_close(two[i], test::values(one[i]), tolerance, tolerance);
  }
}

TEST(Recurrent, OneDnnAgreesWithSteps) {
  if (!test::kOneDnn) GTEST_SKIP() << "built without oneDNN";
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.cell + " " + std::to_string(c.steps) + "x" + std::to_string(c.batch) + " " +
                 std::to_string(c.input) + "->" + std::to_string(c.hidden) + " " + c.direction);
    Problem p = problem(c);
    compare(c.cell, p.inputs, p.outputs, p.attrs, 1e-5);
    std::vector<Tensor> inputs = p.dy;
    inputs.insert(inputs.end(), p.inputs.begin(), p.inputs.end());
    p.attrs.set("cell", c.cell);
    compare("steep.RecurrentGrad", inputs, p.gradients, p.attrs, 1e-4);
  }
}

// The gradient from a trace has the bits of the gradient that runs the layer again.
TEST(Recurrent, TraceGivesTheSameGradient) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.cell + " " + std::to_string(c.steps) + "x" + std::to_string(c.batch) + " " +
                 std::to_string(c.input) + "->" + std::to_string(c.hidden) + " " + c.direction);
    Problem p = problem(c);
    const bool lstm = c.cell == "LSTM";
    const int64_t d = c.direction == "bidirectional" ? 2 : 1, rows = c.batch * c.hidden;
    const int64_t gates = lstm ? 4 : c.cell == "GRU" ? 3 : 1;
    const int64_t trace = rows * (c.steps * (gates + 1) + (c.steps + 1) * (lstm ? 2 : 1));
    Attrs attrs = p.attrs;
    attrs.set("cell", c.cell);
    std::vector<Out> traced_outputs = p.outputs;
    traced_outputs.resize(3, {DType::f32, {0}});
    traced_outputs.push_back({DType::f32, {d, trace}});
    std::vector<Tensor> operands = p.dy;
    operands.insert(operands.end(), p.inputs.begin(), p.inputs.end());
    std::vector<Tensor> with_trace = operands;
    with_trace.emplace_back();
    for (const int threads : {1, 2, 5}) {
      const test::RunOptions own{.threads = threads, .only = "gemm"};
      const auto results = run_kernel(c.cell, p.inputs, p.outputs, p.attrs, own);
      const auto traced =
          run_kernel("steep.RecurrentWithTrace", p.inputs, traced_outputs, attrs, own);
      for (size_t i = 0; i < results.size(); ++i) expect_same_bits(traced[i], results[i]);
      const auto again = run_kernel("steep.RecurrentGrad", operands, p.gradients, attrs, own);
      with_trace.back() = traced[3];
      const auto gradients = run_kernel("steep.RecurrentGrad", with_trace, p.gradients, attrs,
                                        {.threads = threads, .candidate = "gemm"});
      for (size_t i = 0; i < again.size(); ++i) {
        if (again[i].size() > 0) expect_same_bits(gradients[i], again[i]);
      }
    }
  }
}

TEST(Recurrent, OneDnnLeavesOutWhatNobodyWants) {
  if (!test::kOneDnn) GTEST_SKIP() << "built without oneDNN";
  Problem p = problem({"LSTM", 4, 3, 5, 6, "bidirectional", {}, true, true, true});
  const auto all = run_kernel("LSTM", p.inputs, p.outputs, p.attrs, {.candidate = "onednn"});
  for (size_t i = 0; i < 3; ++i) {
    std::vector<Out> outputs(3);
    outputs[i] = p.outputs[i];
    expect_same_bits(run_kernel("LSTM", p.inputs, outputs, p.attrs)[i], all[i]);
  }
  std::vector<Tensor> inputs = p.dy;
  inputs.insert(inputs.end(), p.inputs.begin(), p.inputs.end());
  p.attrs.set("cell", std::string("LSTM"));
  const auto grads =
      run_kernel("steep.RecurrentGrad", inputs, p.gradients, p.attrs, {.candidate = "onednn"});
  for (size_t i = 0; i < 6; ++i) {
    std::vector<Out> outputs(7);
    outputs[i] = p.gradients[i];
    expect_same_bits(run_kernel("steep.RecurrentGrad", inputs, outputs, p.attrs)[i], grads[i]);
  }
}

TEST(Recurrent, OneDnnDeclinesWhatItDoesDifferently) {
  auto by_steps = [](const std::string& name, Attr value) {
    Problem p = problem({"LSTM", 2, 2, 3, 4});
    p.attrs.set(name, std::move(value));
    run_kernel("LSTM", p.inputs, p.outputs, p.attrs, {.candidate = "gemm"});
  };
  by_steps("clip", 0.5);
  by_steps("input_forget", int64_t{1});
  by_steps("activations", Strings{"HardSigmoid", "Tanh", "Tanh"});
}

}  // namespace
}  // namespace steep

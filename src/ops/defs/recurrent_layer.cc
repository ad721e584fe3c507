// LSTM, GRU and RNN as loops over their steps. One product outside the loop multiplies the inputs
// of all steps.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "ops/build.h"
#include "ops/defs/loop.h"
#include "ops/parts.h"
#include "ops/positions.h"
#include "steep/error.h"

namespace steep {
namespace {

// --- activations ---------------------------------------------------------------------------------

/// One of ONNX's activation functions with its parameters.
struct Activation {
  std::string_view name;  ///< in lower case
  bool has_alpha = false, has_beta = false;
  double alpha = 0, beta = 0;
};

constexpr std::array kActivations = {
    Activation{"affine", true, true, 1, 0},
    Activation{"elu", true, false, 1},
    Activation{"hardsigmoid", true, true, 0.2, 0.5},
    Activation{"leakyrelu", true, false, 0.01},
    Activation{"relu"},
    Activation{"scaledtanh", true, true, 1, 1},
    Activation{"sigmoid"},
    Activation{"softplus"},
    Activation{"softsign"},
    Activation{"tanh"},
    Activation{"thresholdedrelu", true, false, 1},
};

Value activate(const Activation& f, Value x) {
  if (f.name == "affine") return x * f.alpha + f.beta;
  if (f.name == "elu") return apply("Elu", {x}, {{"alpha", f.alpha}});
  if (f.name == "hardsigmoid")
    return apply("HardSigmoid", {x}, {{"alpha", f.alpha}, {"beta", f.beta}});
  if (f.name == "leakyrelu") return apply("LeakyRelu", {x}, {{"alpha", f.alpha}});
  if (f.name == "relu") return apply("Relu", {x});
  if (f.name == "scaledtanh") return tanh(x * f.beta) * f.alpha;
  if (f.name == "sigmoid") return apply("Sigmoid", {x});
  if (f.name == "softplus") return apply("Softplus", {x});
  if (f.name == "softsign") return apply("Softsign", {x});
  if (f.name == "thresholdedrelu") return apply("ThresholdedRelu", {x}, {{"alpha", f.alpha}});
  return tanh(x);
}

Activation find_activation(Node n, std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Activation& activation : kActivations) {
    if (activation.name == name) return activation;
  }
  throw ModelError({.what = "A recurrent layer has an activation that is not known.",
                    .node = n.name(),
                    .op = n.op(),
                    .expected = "an activation of ONNX's recurrent layers",
                    .received = name,
                    .remedy = "Export the model again."});
}

Floats reals(Node n, std::string_view name) {
  const Attr* a = n.attrs().find(name);
  const auto* values = a == nullptr ? nullptr : std::get_if<Floats>(a);
  return values == nullptr ? Floats() : *values;
}

/// The activation functions of all directions. Each function takes its parameters, if it has any,
/// from the two lists, in order.
std::vector<Activation> read_activations(Node n, const Strings& defaults, size_t directions) {
  Strings names;
  if (const Attr* a = n.attrs().find("activations")) names = std::get<Strings>(*a);
  if (names.empty()) {
    for (size_t d = 0; d < directions; ++d)
      names.insert(names.end(), defaults.begin(), defaults.end());
  }
  if (names.size() != defaults.size() * directions) {
    throw ModelError({.what = "The number of activations of a recurrent layer does not fit.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = fmt::format("{}", defaults.size() * directions),
                      .received = fmt::format("{}", names.size()),
                      .remedy = "Export the model again."});
  }
  const Floats alphas = reals(n, "activation_alpha"), betas = reals(n, "activation_beta");
  size_t next_alpha = 0, next_beta = 0;
  std::vector<Activation> functions;
  for (const std::string& name : names) {
    Activation f = find_activation(n, name);
    if (f.has_alpha && next_alpha < alphas.size()) f.alpha = alphas[next_alpha++];
    if (f.has_beta && next_beta < betas.size()) f.beta = betas[next_beta++];
    functions.push_back(f);
  }
  return functions;
}

// --- one direction -------------------------------------------------------------------------------

/// Splits x along its last axis into `count` parts of extent `size`.
std::vector<Value> split(Value x, size_t count, int64_t size) {
  if (count == 1) return {x};
  return apply_n("Split", std::vector{x, ints(x.graph(), Ints(count, size))},
                 static_cast<int>(count), {{"axis", int64_t{-1}}});
}

class Layer {
 public:
  Layer(Node n, const std::string& cell, std::span<const Value> inputs)
      : n_(n),
        cell_(cell),
        gates_(cell == "LSTM"  ? 4
               : cell == "GRU" ? 3
                               : 1),
        batch_major_(integer_of(n, "layout") != 0),
        before_reset_(integer_of(n, "linear_before_reset") != 0),
        w_(inputs[1]),
        r_(inputs[2]),
        b_(inputs[3]),
        h0_(inputs[5]),
        c0_(inputs[6]),
        p_(inputs[7]),
        x_(batch_major_ ? transpose(inputs[0], {1, 0, 2}) : inputs[0]) {
    hidden_ = n.attrs().integer("hidden_size", r_.shape()[2].known() ? r_.shape()[2].value() : 0);
    if (hidden_ <= 0) {
      throw ModelError({.what = "A recurrent layer does not say how large its state is.",
                        .node = n.name(),
                        .op = n.op(),
                        .expected = "the attribute hidden_size",
                        .remedy = "Export the model again."});
    }
    state_shape_ = concat({as_vector(extent_of(x_, 1)), ints(graph(), {hidden_})}, 0);
    if (inputs[4]) {
      const Value times = positions(extent_of(x_, 0));
      there_ =
          unsqueeze(less(unsqueeze(times, {1}), unsqueeze(cast(inputs[4], DType::i64), {0})), {2});
    }
  }

  std::vector<Value> run() {
    const std::string direction = text_of(n_, "direction");
    const size_t directions = direction == "bidirectional" ? 2 : 1;
    const Strings defaults = cell_ == "LSTM"  ? Strings{"Sigmoid", "Tanh", "Tanh"}
                             : cell_ == "GRU" ? Strings{"Sigmoid", "Tanh"}
                                              : Strings{"Tanh"};
    const std::vector<Activation> functions = read_activations(n_, defaults, directions);
    std::vector<Value> y, h, c;
    for (size_t d = 0; d < directions; ++d) {
      functions_ = std::span(functions).subspan(d * defaults.size(), defaults.size());
      const std::vector<Value> results =
          run_direction(static_cast<int64_t>(d), d == 1 || direction == "reverse");
      h.push_back(unsqueeze(results.front(), {0}));
      if (lstm()) c.push_back(unsqueeze(results[1], {0}));
      y.push_back(unsqueeze(results.back(), {1}));
    }
    std::vector<Value> results{concat(y, 1), concat(h, 0)};
    if (lstm()) results.push_back(concat(c, 0));
    if (batch_major_) {
      results[0] = transpose(results[0], {2, 0, 1, 3});
      for (size_t i = 1; i < results.size(); ++i) results[i] = transpose(results[i], {1, 0, 2});
    }
    return results;
  }

 private:
  Graph& graph() const { return n_.graph(); }
  bool lstm() const { return cell_ == "LSTM"; }

  /// The part of a weight for one direction.
  Value of(Value weight, int64_t direction, const Ints& shape) const {
    const Value part =
        apply("Gather", {weight, scalar(graph(), static_cast<double>(direction), DType::i64)});
    return reshape(part, shape);
  }

  Value initial(Value states, int64_t direction) const {
    if (!states) return apply("Expand", {scalar(graph(), 0, x_.dtype()), state_shape_});
    const Value index = scalar(graph(), static_cast<double>(direction), DType::i64);
    return reshape(apply("Gather", {states, index}, {{"axis", int64_t{batch_major_}}}),
                   state_shape_);
  }

  /// Runs one direction. Returns the final h, the final c (LSTM), and h of all steps.
  std::vector<Value> run_direction(int64_t d, bool reversed) {
    const int64_t width = gates_ * hidden_;
    const Value w = of(w_, d, {width, -1});
    Value products = matmul(x_, transpose(w, {1, 0}));
    Value late_bias;  // GRU: a bias that the reset gate multiplies
    if (b_) {
      const std::vector<Value> b = split(of(b_, d, {2 * width}), 2, width);
      products = products + b[0];
      if (cell_ == "GRU" && before_reset_) {
        const Value early =
            apply("Slice", {b[1], ints(graph(), {0}), ints(graph(), {2 * hidden_})});
        const Value zeros = graph().add_constant(Tensor::zeros(x_.dtype(), {hidden_}));
        products = products + concat({early, zeros}, 0);
        late_bias = apply("Slice", {b[1], ints(graph(), {2 * hidden_}), ints(graph(), {width})});
      } else {
        products = products + b[1];
      }
    }
    return run_steps(products, transpose(of(r_, d, {width, hidden_}), {1, 0}), late_bias,
                     p_ ? of(p_, d, {3 * hidden_}) : Value(), d, reversed);
  }

  std::vector<Value> run_steps(Value products, Value r, Value late_bias, Value peepholes, int64_t d,
                               bool reversed) {
    NewLoop loop{.scanned = {products}, .in_axes = {0}, .out_axes = {0}, .from_the_end = reversed};
    const auto body = std::make_shared<Graph>();
    body->add_input("iteration", {DType::i64, Shape{}});
    const Type slice = slice_in_body(products, 0, "step");
    const Dim batch = (*slice.shape)[0];
    const Type state{x_.dtype(), Shape{batch, hidden_}};
    Step step;
    loop.carried.push_back(initial(h0_, d));
    step.h = body->add_input("h", state);
    if (lstm()) {
      loop.carried.push_back(initial(c0_, d));
      step.c = body->add_input("c", state);
    }
    step.x = body->add_input("products", {x_.dtype(), Shape{batch, gates_ * hidden_}});
    Value there;
    if (there_) {
      loop.scanned.push_back(there_);
      loop.in_axes.push_back(0);
      there = body->add_input("there", {DType::boolean, Shape{batch, 1}});
    }
    auto capture = [&](Value v, const char* name) {
      if (!v) return Value();
      loop.captured.push_back(v);
      return body->add_input(name, v.type());
    };
    step.r = capture(r, "r");
    step.late_bias = capture(late_bias, "bias");
    step.peepholes = capture(peepholes, "p");

    const auto [h, c] = lstm() ? run_lstm(step) : cell_ == "GRU" ? run_gru(step) : run_rnn(step);
    body->add_output("h", there ? where(there, h, step.h) : h);
    if (lstm()) body->add_output("c", there ? where(there, c, step.c) : c);
    body->add_output("y", there ? where(there, h, 0.0) : h);
    loop.body = body;
    std::vector<Value> results = add_loop(graph(), loop);
    const Shape& steps = products.shape();
    for (Value v : results) graph().set_type(v, {x_.dtype(), Shape{steps[1], hidden_}});
    graph().set_type(results.back(), {x_.dtype(), Shape{steps[0], steps[1], hidden_}});
    return results;
  }

  // --- one step, in the body ---------------------------------------------------------------------

  struct Step {
    Value x;                        // products with the input, biases included
    Value h, c;                     // states before the step
    Value r, late_bias, peepholes;  // shared by all steps
  };
  struct States {
    Value h, c;
  };

  Value f(size_t which, Value x) const {
    const double clip = real_of(n_, "clip");
    if (clip > 0) {
      Graph& g = x.graph();
      x = apply("Clip", {x, scalar(g, -clip, x.dtype()), scalar(g, clip, x.dtype())});
    }
    return activate(functions_[which], x);
  }

  States run_rnn(const Step& s) const { return {f(0, s.x + matmul(s.h, s.r)), {}}; }

  /// Gates z, r, h.
  States run_gru(const Step& s) const {
    const auto x = split(s.x, 3, hidden_);
    const auto r = split(s.r, 3, hidden_);
    const Value z = f(0, x[0] + matmul(s.h, r[0])), reset = f(0, x[1] + matmul(s.h, r[1]));
    Value inner = before_reset_ ? matmul(s.h, r[2]) : matmul(reset * s.h, r[2]);
    if (s.late_bias) inner = inner + s.late_bias;
    if (before_reset_) inner = reset * inner;
    return {(1.0 - z) * f(1, x[2] + inner) + z * s.h, {}};
  }

  /// Gates i, o, f, c; peepholes i, o, f.
  States run_lstm(const Step& s) const {
    const auto gates = split(s.x + matmul(s.h, s.r), 4, hidden_);
    const auto p = s.peepholes ? split(s.peepholes, 3, hidden_) : std::vector<Value>(3);
    auto peep = [](Value gate, Value weight, Value cell) {
      return weight ? gate + weight * cell : gate;
    };
    const Value in = f(0, peep(gates[0], p[0], s.c));
    const Value forget =
        integer_of(n_, "input_forget") != 0 ? 1.0 - in : f(0, peep(gates[2], p[2], s.c));
    const Value c = forget * s.c + in * f(1, gates[3]);
    return {f(0, peep(gates[1], p[1], c)) * f(2, c), c};
  }

  Node n_;
  const std::string& cell_;
  int64_t gates_;
  bool batch_major_, before_reset_;
  Value w_, r_, b_, h0_, c0_, p_;
  Value x_;  // [steps, batch, input]
  int64_t hidden_ = 0;
  Value state_shape_;
  Value there_;  // [steps, batch, 1]: the sequences that have that step; null: all
  std::span<const Activation> functions_;
};

}  // namespace

std::vector<Value> recurrent_layer(Node n, const std::string& cell, std::span<const Value> inputs) {
  return Layer(n, cell, inputs).run();
}

}  // namespace steep

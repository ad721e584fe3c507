// LSTM, GRU and RNN, and what a training step makes of them. `cell` names the operator; the other
// attributes are the layer's. Gradients and inputs that a layer does not have are absent.
//
//   steep.RecurrentWithTrace(x, w, r, b, lens, h0, c0, p){cell, …} → y, y_h, y_c, trace
//
// The trace is what the gradient would have to compute again, with the results' dtype. Its shape is
// [directions, elements]; the elements are, in this order of arrays:
//
//   gates   [steps, batch, gates, hidden]  after their activations, in ONNX's order
//   extra   [steps, batch, hidden]         LSTM: the third activation of the cell; GRU: the operand
//                                          that the reset gate multiplies, or its product
//   states  [steps + 1, batch, hidden]     h before and after each step
//   cells   [steps + 1, batch, hidden]     LSTM: c, likewise
//
//   steep.RecurrentGrad(dy, dy_h, dy_c, x, w, r, b, lens, h0, c0, p, trace){cell, …}
//     → dx, dw, dr, db, dh0, dc0, dp
//
// Outputs for absent inputs are empty. Without a trace, the layer runs again.
#include <algorithm>
#include <iterator>

#include "ops/build.h"
#include "ops/parts.h"

namespace steep {
namespace {

const std::initializer_list<Attribute> kRecurrentAttributes = {
    {"cell", ""},        {"clip", 0.0}, {"direction", "forward"},
    {"input_forget", 0}, {"layout", 0}, {"linear_before_reset", 0}};

constexpr int kLens = 4;  // the only input that has no gradient
constexpr int kInputs = 8;

/// The gradients of the layer's inputs; `inputs`: of steep.RecurrentGrad.
Grads recurrent_gradients(Node n, const std::vector<Value>& inputs, Attrs attrs) {
  const auto grads = apply_n("steep.RecurrentGrad", inputs, kInputs - 1, std::move(attrs));
  Grads dx;
  for (int i = 0, next = 0; i < kInputs; ++i) {
    if (i == kLens) {
      dx.emplace_back();
      continue;
    }
    dx.push_back(n.input(i) ? grads[static_cast<size_t>(next)] : Value());
    ++next;
  }
  return dx;
}

std::vector<Value> gradient_operands(Node n, const Grads& dy) {
  std::vector<Value> operands(dy.begin(), dy.begin() + std::min<ptrdiff_t>(3, std::ssize(dy)));
  operands.resize(3);
  for (int i = 0; i < kInputs; ++i) operands.push_back(n.input(i));
  return operands;
}

Grads recurrent_vjp(Node n, const Grads& dy) {
  Attrs attrs = n.attrs();
  attrs.set("cell", n.op());
  return recurrent_gradients(n, gradient_operands(n, dy), std::move(attrs));
}

/// The trace has no gradient: only steep.RecurrentGrad reads it, whose gradient does not.
Grads recurrent_with_trace_vjp(Node n, const Grads& dy) {
  std::vector<Value> operands = gradient_operands(n, dy);
  operands.push_back(n.output(3));
  return recurrent_gradients(n, operands, n.attrs());
}

std::vector<Type> recurrent_grad_infer(Node n) {
  std::vector<Type> types;
  for (int i = 0; i < kInputs; ++i) {
    if (i == kLens) continue;
    Value x = n.input(3 + i);
    types.push_back(x ? x.type() : Type{n.input(3).dtype(), Shape{0}});
  }
  return types;
}

/// The results of ONNX's operator, of which only LSTM has y_c, and the trace. REQUIRES: concrete
/// types.
std::vector<Type> recurrent_with_trace_infer(Node n) {
  const Shape &x = n.input(0).shape(), &r = n.input(2).shape();
  const std::string cell = text_of(n, "cell");
  const bool batch_major = integer_of(n, "layout") != 0;
  const Dim steps = x[batch_major ? 1 : 0], batch = x[batch_major ? 0 : 1];
  const Dim directions = r[0], hidden = r[2];
  const int64_t gates = cell == "LSTM" ? 4 : cell == "GRU" ? 3 : 1;
  const int64_t t = steps.value(), rows = batch.value() * hidden.value();
  const int64_t states = cell == "LSTM" ? 2 : 1;
  const DType dtype = n.input(0).dtype();
  const Type state{
      dtype, batch_major ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden}};
  const Type y{dtype, batch_major ? Shape{batch, steps, directions, hidden}
                                  : Shape{steps, directions, batch, hidden}};
  return {y,
          state,
          cell == "LSTM" ? state : Type{dtype, Shape{0}},
          {dtype, Shape{directions, Dim(rows * (t * (gates + 1) + (t + 1) * states))}}};
}

/// The gradients of the layer, which is recomputed step by step.
std::vector<Value> layer_gradients(Node n, std::span<const Value> inputs,
                                   Differentiate differentiate) {
  const std::string cell = text_of(n, "cell");
  const Grads dy(inputs.begin(), inputs.begin() + 3);
  std::vector<Value> dx =
      gradients_in_parts([&](std::span<const Value> own) { return recurrent_layer(n, cell, own); },
                         inputs.subspan(3), dy, differentiate);
  dx.erase(dx.begin() + kLens);
  return dx;
}

std::vector<Value> inputs_of(Node n) {
  std::vector<Value> inputs;
  for (int i = 0; i < 3 + kInputs; ++i) inputs.push_back(n.input(i));
  return inputs;
}

Grads recurrent_grad_vjp(Node n, const Grads& dy, Differentiate differentiate) {
  return differentiate_parts(
      [&](std::span<const Value> own) { return layer_gradients(n, own, differentiate); },
      inputs_of(n), dy, differentiate);
}

std::vector<Value> recurrent_grad_in_parts(Node n, Differentiate differentiate) {
  return layer_gradients(n, inputs_of(n), differentiate);
}

}  // namespace

extern const OpDef kLSTM = {.name = "LSTM",
                            .attributes = kRecurrentAttributes,
                            .ranks = "3 3 3 2 1 3 3 2",
                            .vjp = recurrent_vjp};
extern const OpDef kGRU = {.name = "GRU",
                           .attributes = kRecurrentAttributes,
                           .ranks = "3 3 3 2 1 3",
                           .vjp = recurrent_vjp};
extern const OpDef kRNN = {.name = "RNN",
                           .attributes = kRecurrentAttributes,
                           .ranks = "3 3 3 2 1 3",
                           .vjp = recurrent_vjp};
extern const OpDef kSteepRecurrentWithTrace = {.name = "steep.RecurrentWithTrace",
                                               .attributes = kRecurrentAttributes,
                                               .vjp = recurrent_with_trace_vjp,
                                               .infer = recurrent_with_trace_infer};
extern const OpDef kSteepRecurrentGrad = {.name = "steep.RecurrentGrad",
                                          .attributes = kRecurrentAttributes,
                                          .vjp = recurrent_grad_vjp,
                                          .infer = recurrent_grad_infer,
                                          .export_decomposition = recurrent_grad_in_parts};

}  // namespace steep

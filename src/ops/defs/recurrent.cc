// LSTM, GRU and RNN, and steep.RecurrentGrad(dy, dy_h, dy_c, x, w, r, b, lens, h0, c0, p){cell, and
// the attributes of the layer} → dx, dw, dr, db, dh0, dc0, dp, the gradient of all three. Gradients
// and inputs that a layer does not have are absent; outputs for absent inputs are empty.
#include "ops/build.h"
#include "ops/parts.h"

namespace steep {
namespace {

const std::initializer_list<Attribute> kRecurrentAttributes = {
    {"cell", ""},        {"clip", 0.0}, {"direction", "forward"},
    {"input_forget", 0}, {"layout", 0}, {"linear_before_reset", 0}};

constexpr int kLens = 4;  // the only input that has no gradient
constexpr int kInputs = 8;

Grads recurrent_vjp(Node n, const Grads& dy) {
  std::vector<Value> inputs(dy.begin(), dy.end());
  inputs.resize(3);
  for (int i = 0; i < kInputs; ++i) inputs.push_back(n.input(i));
  Attrs attrs = n.attrs();
  attrs.set("cell", n.op());
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

std::vector<Type> recurrent_grad_infer(Node n) {
  std::vector<Type> types;
  for (int i = 0; i < kInputs; ++i) {
    if (i == kLens) continue;
    Value x = n.input(3 + i);
    types.push_back(x ? x.type() : Type{n.input(3).dtype(), Shape{0}});
  }
  return types;
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
extern const OpDef kSteepRecurrentGrad = {.name = "steep.RecurrentGrad",
                                          .attributes = kRecurrentAttributes,
                                          .vjp = recurrent_grad_vjp,
                                          .infer = recurrent_grad_infer,
                                          .export_decomposition = recurrent_grad_in_parts};

}  // namespace steep

// Imports calls of functions with a user-defined gradient (model/custom/functions.h): the body, or
// a node of a provider's operator, with steep.WithGradient around it (ops/defs/with_gradient.cc).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/custom/functions.h"
#include "model/import/inline.h"
#include "model/read/quote.h"
#include "ops/build.h"
#include "ops/defs/with_gradient.h"
#include "ops/offered.h"
#include "steep/error.h"

namespace steep {
namespace {

bool has_gradient(const Binding& b) {
  return b.value() && b.value().type().kind == Kind::tensor && is_float(b.value().dtype());
}

std::string told(const Binding& b) {
  if (b.items() != nullptr) return "a sequence";
  return b ? to_string(b.value().type()) : "nothing";
}

[[noreturn]] void fail(const FileNode& node, const onnx::FunctionProto& function, std::string what,
                       std::string expected, std::string received) {
  throw ModelError({.what = std::move(what),
                    .node = quote(node.name()),
                    .op = quote(qualified(function)),
                    .expected = std::move(expected),
                    .received = std::move(received),
                    .remedy = "Correct the gradient that is registered for the operator."});
}

std::vector<Binding> call_body(Importer& importer, const FileNode& node,
                               const onnx::FunctionProto& function) {
  if (find_offered(qualified(function)) != nullptr) return call_offered(importer, node, function);
  return inline_function(importer, {.node = node.proto,
                                    .function = function,
                                    .inputs = node.inputs,
                                    .frame = node.frame,
                                    .prefix = node.name() + "/"});
}

/// Results behind a steep.StopGradient, so that no gradient flows into the body.
struct CutResults {
  std::vector<Value> y, dy;  ///< differentiable results, and their gradients
  /// Operands of the gradient: inputs, outputs, gradients of outputs.
  std::vector<Binding> operands;
};

CutResults cut_off(Importer& importer, const FileNode& node, const onnx::FunctionProto& function,
                   std::vector<Binding>& results) {
  CutResults cut;
  cut.operands = node.inputs;
  cut.operands.resize(static_cast<size_t>(function.input_size()));
  const Graph::Scope scope(importer.graph(), Phase::forward, node.name());
  for (Binding& result : results) {
    if (result.items() != nullptr || (result && result.value().type().kind != Kind::tensor)) {
      fail(node, function, "An operator with a custom gradient has a result that is not a tensor.",
           "tensors", told(result));
    }
    if (has_gradient(result)) {
      result = apply("steep.StopGradient", {result.value()});
      cut.y.push_back(result.value());
    }
    cut.operands.push_back(result);
  }
  for (const Binding& result : results) {
    cut.operands.emplace_back();
    if (!has_gradient(result)) continue;
    cut.dy.push_back(apply("steep.GradientOf", {result.value()}));
    cut.operands.back() = cut.dy.back();
  }
  return cut;
}

/// The call of the gradient function: the node's attributes, with the function's defaults for
/// missing ones.
onnx::NodeProto with_defaults(const onnx::NodeProto& node, const onnx::FunctionProto& function) {
  onnx::NodeProto call = node;
  for (const auto& attribute : function.attribute_proto()) {
    const auto& there = node.attribute();
    if (std::none_of(there.begin(), there.end(),
                     [&](const auto& a) { return a.name() == attribute.name(); }))
      *call.add_attribute() = attribute;
  }
  return call;
}

/// The gradient for input i, checked against the input's type. REQUIRES: has_gradient() of that
/// input.
Value fitting(const FileNode& node, const onnx::FunctionProto& function, size_t i,
              const Binding& gradient) {
  const Value to = node.inputs[i].value(), from = gradient.value();
  const std::string input = quote(function.input(static_cast<int>(i)));
  if (!from || from.type().kind != Kind::tensor || from.dtype() != to.dtype()) {
    fail(node, function, "A gradient is of another type than its input.",
         fmt::format("{} for input {} ({})", name_of(to.dtype()), i, input), told(gradient));
  }
  return checked_gradient(from, to, quote(node.name()), quote(qualified(function)),
                          fmt::format("{} ({})", i, input));
}

}  // namespace

std::vector<Binding> call_function(Importer& importer, const FileNode& node,
                                   const onnx::FunctionProto& function) {
  const std::string name = node.name();
  std::vector<Binding> results = call_body(importer, node, function);
  const auto& gradients_of = importer.model().gradients;
  const auto own = gradients_of.find(function_id(function));
  if (own == gradients_of.end()) return results;
  CutResults cut = cut_off(importer, node, function, results);
  if (cut.y.empty()) return results;

  const onnx::FunctionProto* gradient = importer.find_function(own->second.function);
  if (gradient == nullptr) {
    fail(node, function, "The gradient of an operator needs operators that Steep does not know.",
         "operators of the ONNX standard, or registered ones", "a call of one that is not");
  }
  const onnx::NodeProto call = with_defaults(node.proto, function);
  const std::vector<Binding> gradients = inline_function(importer, {.node = call,
                                                                    .function = *gradient,
                                                                    .inputs = cut.operands,
                                                                    .frame = node.frame,
                                                                    .prefix = name + "/gradient/"});
  const Graph::Scope scope(importer.graph(), Phase::forward, name);
  std::vector<Value> x, dx;
  for (size_t k = 0; k < gradients.size(); ++k) {
    const auto i = static_cast<size_t>(own->second.wrt[k]);
    if (!gradients[k] || i >= node.inputs.size() || !has_gradient(node.inputs[i])) continue;
    x.push_back(node.inputs[i].value());
    dx.push_back(apply("steep.StopGradient", {fitting(node, function, i, gradients[k])}));
  }
  if (x.empty()) return results;
  std::vector<Value> operands = cut.y;
  for (const auto* list : {&x, &dx, &cut.dy})
    operands.insert(operands.end(), list->begin(), list->end());
  const auto count = static_cast<int>(cut.y.size());
  const std::vector<Value> z =
      apply_n("steep.WithGradient", operands, count, {{"outputs", int64_t{count}}});
  size_t next = 0;
  for (Binding& result : results) {
    if (has_gradient(result)) result = z[next++];
  }
  return results;
}

}  // namespace steep

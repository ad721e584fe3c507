// Functions that have a gradient of their own (model/custom/functions.h), imported where they are
// called: the body, or a node of an operator that a provider offers, and around it
// steep.WithGradient, of which ops/defs/with_gradient.cc tells.
#include <fmt/format.h>

#include <algorithm>

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

}  // namespace

std::vector<Binding> call_function(Importer& importer, const FileNode& node,
                                   const onnx::FunctionProto& function) {
  const std::string name = node.name();
  const std::vector<Binding>& inputs = node.inputs;
  std::vector<Binding> results = find_offered(qualified(function)) != nullptr
                                     ? call_offered(importer, node, function)
                                     : inline_function(importer, {.node = node.proto,
                                                                  .function = function,
                                                                  .inputs = inputs,
                                                                  .frame = node.frame,
                                                                  .prefix = name + "/"});
  const auto& gradients_of = importer.model().gradients;
  const auto own = gradients_of.find(function_id(function));
  if (own == gradients_of.end()) return results;
  auto fail = [&](std::string what, std::string expected, std::string received) {
    throw ModelError({.what = std::move(what),
                      .node = quote(name),
                      .op = quote(qualified(function)),
                      .expected = std::move(expected),
                      .received = std::move(received),
                      .remedy = "Correct the gradient that is registered for the operator."});
  };

  // What the gradient is given: inputs, outputs, gradients of outputs. The outputs are cut off from
  // the body, through which nothing is to flow.
  std::vector<Binding> given = inputs;
  given.resize(static_cast<size_t>(function.input_size()));
  std::vector<Value> y, x, dx, dy;
  {
    const Graph::Scope scope(importer.graph(), Phase::forward, name);
    for (Binding& result : results) {
      if (result.items() != nullptr || (result && result.value().type().kind != Kind::tensor)) {
        fail("An operator with a custom gradient has a result that is not a tensor.", "tensors",
             told(result));
      }
      if (has_gradient(result)) {
        result = apply("steep.StopGradient", {result.value()});
        y.push_back(result.value());
      }
      given.push_back(result);
    }
    for (const Binding& result : results) {
      given.emplace_back();
      if (!has_gradient(result)) continue;
      dy.push_back(apply("steep.GradientOf", {result.value()}));
      given.back() = dy.back();
    }
  }
  if (y.empty()) return results;

  const onnx::FunctionProto* gradient = importer.find_function(own->second.function);
  if (gradient == nullptr) {
    fail("The gradient of an operator needs operators that Steep does not know.",
         "operators of the ONNX standard, or registered ones", "a call of one that is not");
  }
  onnx::NodeProto call = node.proto;
  for (const auto& attribute : function.attribute_proto()) {
    const auto& there = node.proto.attribute();
    if (std::none_of(there.begin(), there.end(),
                     [&](const auto& a) { return a.name() == attribute.name(); }))
      *call.add_attribute() = attribute;
  }
  const std::vector<Binding> gradients = inline_function(importer, {.node = call,
                                                                    .function = *gradient,
                                                                    .inputs = given,
                                                                    .frame = node.frame,
                                                                    .prefix = name + "/gradient/"});
  const Graph::Scope scope(importer.graph(), Phase::forward, name);
  for (size_t k = 0; k < gradients.size(); ++k) {
    const auto i = static_cast<size_t>(own->second.wrt[k]);
    if (!gradients[k] || i >= inputs.size() || !has_gradient(inputs[i])) continue;
    const Value to = inputs[i].value(), from = gradients[k].value();
    if (!from || from.type().kind != Kind::tensor || from.dtype() != to.dtype()) {
      fail("A gradient is of another type than its input.",
           fmt::format("{} for input {} ({})", name_of(to.dtype()), i,
                       quote(function.input(static_cast<int>(i)))),
           told(gradients[k]));
    }
    x.push_back(to);
    const Value fits =
        checked_gradient(from, to, quote(name), quote(qualified(function)),
                         fmt::format("{} ({})", i, quote(function.input(static_cast<int>(i)))));
    dx.push_back(apply("steep.StopGradient", {fits}));
  }
  if (x.empty()) return results;
  std::vector<Value> operands = y;
  for (const auto* list : {&x, &dx, &dy})
    operands.insert(operands.end(), list->begin(), list->end());
  const auto count = static_cast<int>(y.size());
  const std::vector<Value> z =
      apply_n("steep.WithGradient", operands, count, {{"outputs", int64_t{count}}});
  size_t next = 0;
  for (Binding& result : results) {
    if (has_gradient(result)) result = z[next++];
  }
  return results;
}

}  // namespace steep

#include "custom/registrar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <set>
#include <utility>

#include "model/import/check.h"
#include "runtime/counted.h"
#include "train/optimizer.h"

namespace steep {
namespace {

constexpr int kIrVersion = 10;

/// A model that has only functions.
onnx::ModelProto library_of(const std::vector<onnx::FunctionProto>& functions) {
  onnx::ModelProto model;
  model.set_ir_version(kIrVersion);
  model.mutable_graph()->set_name("functions");
  for (const auto& f : functions) {
    *model.add_functions() = f;
    for (const auto& import : f.opset_import()) {
      const auto& there = model.opset_import();
      if (std::none_of(there.begin(), there.end(),
                       [&](const auto& i) { return i.domain() == import.domain(); }))
        *model.add_opset_import() = import;
    }
  }
  return model;
}

/// The gradient function without its outputs of empty name, because ONNX's checker requires names.
CustomGradient gradient_of(onnx::FunctionProto function) {
  CustomGradient gradient;
  std::vector<std::string> names;
  for (int i = 0; i < function.output_size(); ++i) {
    if (function.output(i).empty()) continue;
    names.push_back(function.output(i));
    gradient.wrt.push_back(i);
  }
  function.clear_output();
  for (const std::string& name : names) function.add_output(name);
  gradient.function = std::move(function);
  return gradient;
}

bool begins_with(const std::string& text, std::string_view start) {
  return text.compare(0, start.size(), start) == 0;
}

/// Checks the names that errors show and that look-ups use.
void check_names(const onnx::FunctionProto& f) {
  std::vector<std::string> names{f.domain(), f.name()};
  for (const auto* list : {&f.input(), &f.output(), &f.attribute()})
    names.insert(names.end(), list->begin(), list->end());
  for (const auto& attribute : f.attribute_proto()) names.push_back(attribute.name());
  for (const std::string& name : names) {
    if (is_utf8(name)) continue;
    refuse_function(f, "A name in a function is not valid UTF-8.", "text", quote(name),
                    "Rename it.");
  }
}

void check_domain(const onnx::FunctionProto& f) {
  const std::string& domain = f.domain();
  const bool onnx = domain.empty() || domain == "ai.onnx" || begins_with(domain, "ai.onnx.");
  const bool ours = domain == "steep" || begins_with(domain, "steep.");
  if (!onnx && !ours) return;
  refuse_function(f, "The domain of an operator is reserved.", "a domain of your own",
                  fmt::format("\"{}\", which is {}", quote(domain), onnx ? "ONNX's" : "Steep's"),
                  ours ? "Give it another domain; optimizers are of the domain \"steep.optimizer\"."
                       : "Give it another domain.");
}

/// The checks that ONNX's checker does not make.
void check_body(const onnx::FunctionProto& f) {
  check_names(f);
  if (!f.overload().empty()) {
    refuse_function(f, "Overloads of a function are not supported.", "one function of a name",
                    quote(f.overload()), "Give it a name of its own.");
  }
  std::set<std::string> attributes(f.attribute().begin(), f.attribute().end());
  for (const auto& attribute : f.attribute_proto()) attributes.insert(attribute.name());
  each_node_of(f, [&](const onnx::NodeProto& node) {
    for (const auto& attribute : node.attribute()) {
      const std::string& name = attribute.ref_attr_name();
      if (name.empty() || attributes.count(name) != 0) continue;
      refuse_function(f,
                      "A node in a function reads an attribute that the function does not declare.",
                      fmt::format("{}", fmt::join(attributes, ", ")),
                      fmt::format("@{} in {}", quote(name), quote(display_name(node))),
                      "Declare it: Name <attribute: float = 1.0> (inputs) => (outputs).");
    }
  });
  std::set<std::string> names(f.input().begin(), f.input().end());
  for (const auto& node : f.node()) names.insert(node.output().begin(), node.output().end());
  for (const auto& name : f.output()) {
    if (names.count(name) != 0) continue;
    refuse_function(f, "An output of a function has a name that nothing defines.",
                    "a result of its nodes", quote(name),
                    "Name a value that a node of its body computes.");
  }
}

void check_gradient(const onnx::FunctionProto& f, const onnx::FunctionProto& gradient) {
  const int n = f.input_size(), m = f.output_size();
  if (gradient.input_size() != n + 2 * m) {
    refuse_function(f, "The gradient of an operator has the wrong number of inputs.",
                    fmt::format("{}: {}, {}, {} of outputs", n + 2 * m, counted(n, "input"),
                                counted(m, "output"), counted(m, "gradient")),
                    fmt::format("{}: {}", gradient.input_size(),
                                quote(fmt::format("{}", fmt::join(gradient.input(), ", ")))),
                    "Declare all of them as inputs, including those that it does not read.");
  }
  if (gradient.output_size() > n) {
    refuse_function(f, "The gradient of an operator has too many outputs.",
                    fmt::format("at most {}, one for each input", n),
                    fmt::format("{}", gradient.output_size()),
                    "Remove the outputs that belong to no input.");
  }
  std::set<std::string> attributes(f.attribute().begin(), f.attribute().end());
  for (const auto& attribute : f.attribute_proto()) attributes.insert(attribute.name());
  std::vector<std::string> own(gradient.attribute().begin(), gradient.attribute().end());
  for (const auto& attribute : gradient.attribute_proto()) own.push_back(attribute.name());
  for (const std::string& name : own) {
    if (attributes.count(name) != 0) continue;
    refuse_function(f, "The gradient has an attribute that its operator does not have.",
                    attributes.empty() ? "none" : fmt::format("{}", fmt::join(attributes, ", ")),
                    quote(name), "Give it to the operator, too.");
  }
}

void check_optimizer_function(const onnx::FunctionProto& f) {
  constexpr int kBeside = 3;  // gradient, lr and step: inputs that are not outputs, too
  if (f.domain() != kOptimizerDomain) {
    refuse_function(f, "An optimizer is of another domain.",
                    fmt::format("\"{}\"", kOptimizerDomain),
                    fmt::format("\"{}\"", quote(f.domain())),
                    "Give the function this domain: it marks a function as an optimizer.");
  }
  const std::vector<std::string> ours = built_in_optimizers();
  if (std::find(ours.begin(), ours.end(), f.name()) != ours.end()) {
    refuse_function(f, "A built-in optimizer has this name.", "another name", f.name(),
                    "Rename it.");
  }
  if (f.input_size() < kBeside + 1 || f.output_size() != f.input_size() - kBeside) {
    refuse_function(
        f, "An optimizer has the wrong number of inputs or outputs.",
        "(parameter, gradient, states…, lr, step) => (new parameter, new states…)",
        fmt::format("({}) => ({})", quote(fmt::format("{}", fmt::join(f.input(), ", "))),
                    quote(fmt::format("{}", fmt::join(f.output(), ", ")))),
        "Let it return the parameter and each state, and nothing else.");
  }
  for (int i = 2; i < f.input_size() - 2; ++i) {
    const std::string& name = f.input(i);
    if (!name.empty() && name != "step" && name.find('/') == std::string::npos) continue;
    refuse_function(f, "A state of an optimizer cannot have this name.",
                    "a name that is not \"step\", and without \"/\"", quote(name),
                    "Rename the input.");
  }
  for (const auto& attribute : f.attribute_proto()) {
    if (attribute.name() != "weight_decay") continue;
    const bool zero = attribute.type() == onnx::AttributeProto::FLOAT && attribute.f() == 0;
    if (zero) continue;
    refuse_function(f, "The weight decay of an optimizer has a default.",
                    "weight_decay: float = 0.0, since the session's weight_decay is what counts",
                    "another value or type", "Set the session's weight_decay instead.");
  }
}

[[noreturn]] void refuse_twice(const onnx::FunctionProto& f) {
  refuse_function(f, "A name is registered already, with another body or gradient.",
                  "the same function, or another name", "a function that differs",
                  "Unregister the registered function first, or rename this one.");
}

std::string without_name(onnx::FunctionProto f) {
  f.clear_name();
  f.clear_domain();
  return identity_of(f);
}

bool same(const CustomOp& a, const CustomOp& b) {
  return a.provider == b.provider && identity_of(a.body) == identity_of(b.body) &&
         a.gradient.has_value() == b.gradient.has_value() &&
         (!a.gradient ||
          (a.gradient->wrt == b.gradient->wrt &&
           without_name(a.gradient->function) == without_name(b.gradient->function)));
}

/// The function's name and role, as its author knows them.
std::string known_as(const onnx::FunctionProto& f) {
  const bool gradient = f.domain() == kGradientDomain;
  return (gradient ? "gradient of " : "function ") + quote(gradient ? f.name() : qualified(f));
}

}  // namespace

void refuse_function(const onnx::FunctionProto& f, std::string what, std::string expected,
                     std::string received, std::string remedy) {
  throw ModelError({.what = std::move(what),
                    .node = quote(qualified(f)),
                    .expected = std::move(expected),
                    .received = std::move(received),
                    .remedy = std::move(remedy)});
}

onnx::FunctionProto parse_function(std::span<const std::byte> bytes) {
  onnx::FunctionProto function;
  const bool fits = !bytes.empty() && bytes.size() <= static_cast<size_t>(INT_MAX);
  if (fits && function.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) &&
      !function.name().empty()) {
    return function;
  }
  throw ModelError(
      {.what = "The bytes are not a function.",
       .expected = "a serialised FunctionProto with a name",
       .received = counted(bytes.size(), "byte"),
       .remedy = "onnx.parser.parse_function(text).SerializeToString() returns them."});
}

void Registrar::add_op(onnx::FunctionProto f, std::optional<onnx::FunctionProto> gradient) {
  check_domain(f);
  check_body(f);
  auto op = std::make_shared<CustomOp>();
  op->body = std::move(f);
  add(std::move(op), std::move(gradient));
}

void Registrar::add_offered(onnx::FunctionProto f, std::optional<onnx::FunctionProto> gradient,
                            std::string provider, int64_t since, OfferedTypes types) {
  check_domain(f);
  check_names(f);
  if (f.node_size() > 0) check_body(f);
  auto op = std::make_shared<CustomOp>();
  op->body = std::move(f);
  op->provider = std::move(provider);
  op->since = since;
  offers_.emplace(function_id(op->body), std::move(types));
  add(std::move(op), std::move(gradient));
}

void Registrar::add(std::shared_ptr<CustomOp> op, std::optional<onnx::FunctionProto> gradient) {
  functions_.push_back(op->body);
  if (gradient) {
    check_gradient(op->body, *gradient);
    op->gradient = gradient_of(std::move(*gradient));
    check_body(op->gradient->function);
    functions_.push_back(op->gradient->function);
    // Renamed, because no node calls a gradient function by its own name.
    functions_.back().set_domain(kGradientDomain);
    functions_.back().set_name(qualified(op->body));
  }
  const std::string id = function_id(op->body);
  if (!ops_.emplace(id, op).second) refuse_twice(op->body);
}

void Registrar::add_optimizer(onnx::FunctionProto f) {
  check_optimizer_function(f);
  check_body(f);
  auto optimizer = std::make_shared<CustomOptimizer>();
  for (int i = 2; i < f.input_size() - 2; ++i) optimizer->states.push_back(f.input(i));
  functions_.push_back(f);
  const std::string name = f.name();
  optimizer->body = std::move(f);
  if (!optimizers_.emplace(name, optimizer).second) refuse_twice(optimizer->body);
}

std::vector<std::string> Registrar::finish(const Limits& limits) {
  CustomFunctions all = *custom_functions();
  put_into(all);
  check_recursion(all);
  check_as_model(all, limits);
  for (auto& [name, optimizer] : optimizers_) {
    optimizer->library = library_of({optimizer->body});
    add_custom_functions(&optimizer->library, all);
  }
  std::vector<std::string> names;
  change_custom_functions([&](CustomFunctions& now) {
    names = put_into(now);
    for (const auto& [id, types] : offers_) {
      const onnx::FunctionProto& f = ops_.at(id)->body;
      offer_op(qualified(f), types, f.node_size() > 0);
    }
  });
  return names;
}

std::vector<std::string> Registrar::put_into(CustomFunctions& all) const {
  std::vector<std::string> names;
  for (const auto& [id, op] : ops_) {
    const auto [it, fresh] = all.ops.emplace(id, op);
    if (fresh) {
      names.push_back(qualified(op->body));
    } else if (!same(*it->second, *op)) {
      refuse_twice(op->body);
    }
  }
  for (const auto& [name, optimizer] : optimizers_) {
    const auto [it, fresh] = all.optimizers.emplace(name, optimizer);
    if (fresh) {
      names.push_back(qualified(optimizer->body));
    } else if (identity_of(it->second->body) != identity_of(optimizer->body) ||
               it->second->states != optimizer->states) {
      refuse_twice(optimizer->body);
    }
  }
  return names;
}

/// Registered functions cannot call unregistered ones. But a function may have been removed and
/// registered again with another body, so that cycles are possible.
void Registrar::check_recursion(const CustomFunctions& all) const {
  for (const auto& [id, op] : ops_) {
    std::set<std::string> visits;
    std::vector<const CustomOp*> waiting{op.get()};
    while (!waiting.empty()) {
      const CustomOp* at = waiting.back();
      waiting.pop_back();
      auto look = [&, &start = id, &first = op](const onnx::FunctionProto& f, bool gradient) {
        each_node_of(f, [&](const onnx::NodeProto& node) {
          const std::string callee = function_id(node);
          if (callee == start) {
            refuse_function(
                first->body, "A function calls itself.",
                "a body and a gradient that do not call the function",
                fmt::format("{} in {}{}", quote(display_name(node)),
                            gradient ? "the gradient of " : "", quote(qualified(at->body))),
                gradient ? "Read the operator's outputs, which are inputs of its gradient."
                         : "ONNX functions must not be recursive.");
          }
          const auto next = all.ops.find(callee);
          if (next != all.ops.end() && visits.insert(callee).second)
            waiting.push_back(next->second.get());
        });
      };
      look(at->body, false);
      if (at->gradient) look(at->gradient->function, true);
    }
  }
}

/// Makes all checks of functions in model files: limits, versions, operators, names, tensors.
void Registrar::check_as_model(const CustomFunctions& all, const Limits& limits) const {
  const auto check = [&](const onnx::ModelProto& library) {
    const std::string bytes = library.SerializeAsString();
    read_model(std::as_bytes(std::span(bytes)), {.limits = limits}, {});
  };
  try {
    check(library_of(functions_));
  } catch (const ModelError& e) {
    // Finds the faulty function: the one that fails together with its callees, and has the fewest
    // of them.
    const onnx::FunctionProto* at_fault = &functions_.front();
    int fewest = INT_MAX;
    for (const auto& f : functions_) {
      onnx::ModelProto library = library_of({f});
      try {
        add_custom_functions(&library, all);
        check(library);
      } catch (const ModelError&) {
        if (library.functions_size() >= fewest) continue;
        at_fault = &f;
        fewest = library.functions_size();
      }
    }
    ErrorParts parts = e.parts();
    parts.received = parts.what + (parts.received.empty() ? "" : " " + parts.received);
    parts.what = fmt::format("The {} cannot be registered.", known_as(*at_fault));
    if (parts.node.empty()) parts.node = quote(qualified(*at_fault));
    throw ModelError(std::move(parts));
  }
}

}  // namespace steep

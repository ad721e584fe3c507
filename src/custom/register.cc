// Registers functions (steep/ops.h).
#include <algorithm>
#include <set>
#include <utility>

#include "custom/registrar.h"
#include "model/read/model_file.h"
#include "runtime/budget.h"
#include "steep/ops.h"

namespace steep {
namespace {

constexpr const char* kGradientSuffix = "Grad";

}  // namespace

std::vector<std::string> register_op(std::span<const std::byte> function,
                                     std::span<const std::byte> gradient) {
  return with_our_errors(kRefusedFunction, "", [&] {
    Registrar registrar;
    std::optional<onnx::FunctionProto> own;
    if (!gradient.empty()) own = parse_function(gradient);
    registrar.add_op(parse_function(function), std::move(own));
    return registrar.finish({});
  });
}

std::vector<std::string> register_optimizer(std::span<const std::byte> function) {
  return with_our_errors(kRefusedFunction, "", [&] {
    Registrar registrar;
    registrar.add_optimizer(parse_function(function));
    return registrar.finish({});
  });
}

std::vector<std::string> register_ops(const std::filesystem::path& file, const Limits& limits) {
  const Budget budget(limits);
  return with_our_errors(kRefusedFunction, "", [&] {
    const std::string bytes = read_file(file, limits.max_bytes);
    const onnx::ModelProto model = parse_model(std::as_bytes(std::span(bytes)), limits);
    if (model.functions().empty()) {
      throw ModelError(
          {.what = "The file has no function to register.",
           .node = quote(file.string()),
           .expected = "a model whose `functions` are operators or optimizers",
           .received = "none",
           .remedy = "onnx.parser.parse_model reads functions that follow an empty graph."});
    }
    std::map<std::pair<std::string, std::string>, const onnx::FunctionProto*> functions;
    for (const auto& f : model.functions()) functions[{f.domain(), f.name()}] = &f;
    std::set<const onnx::FunctionProto*> gradients;
    auto gradient_of = [&](const onnx::FunctionProto& f) {
      const auto it = functions.find({f.domain(), f.name() + kGradientSuffix});
      return it == functions.end() ? nullptr : it->second;
    };
    for (const auto& f : model.functions()) {
      if (f.domain() != kOptimizerDomain) gradients.insert(gradient_of(f));
    }
    for (const onnx::FunctionProto* f : gradients) {
      if (f == nullptr || gradient_of(*f) == nullptr) continue;
      refuse_function(*f, "A gradient has a gradient.", "at most a function and its gradient",
                      quote(f->name()) + kGradientSuffix,
                      "Leave it out: second derivatives differentiate the gradient's body.");
    }
    Registrar registrar;
    for (const auto& f : model.functions()) {
      if (f.domain() == kOptimizerDomain) {
        registrar.add_optimizer(f);
      } else if (gradients.count(&f) == 0) {
        const onnx::FunctionProto* own = gradient_of(f);
        registrar.add_op(f, own != nullptr ? std::optional(*own) : std::nullopt);
      }
    }
    return registrar.finish(limits);
  });
}

bool unregister_op(const std::string& name) {
  bool found = false;
  change_custom_functions([&](CustomFunctions& now) {
    auto named = [&](const auto& entry) { return qualified(entry.second->body) == name; };
    auto given = [&](const auto& entry) { return named(entry) && entry.second->provider.empty(); };
    found = std::erase_if(now.ops, given) + std::erase_if(now.optimizers, named) > 0;
  });
  return found;
}

std::vector<std::string> registered_ops() {
  const std::shared_ptr<const CustomFunctions> now = custom_functions();
  std::vector<std::string> names;
  for (const auto& [id, op] : now->ops) {
    if (op->provider.empty()) names.push_back(qualified(op->body));
  }
  for (const auto& [name, optimizer] : now->optimizers) names.push_back(qualified(optimizer->body));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace steep

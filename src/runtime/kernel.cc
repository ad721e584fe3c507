#include "runtime/kernel.h"

#include <fmt/format.h>

namespace steep {
namespace {
const Operand kAbsent;
}

const Operand& NodeSpec::in(size_t i) const { return i < inputs.size() ? inputs[i] : kAbsent; }
const Operand& NodeSpec::out(size_t i) const { return i < outputs.size() ? outputs[i] : kAbsent; }

ChosenKernel choose_kernel(const Provider& provider, const NodeSpec& node, std::string* why_not) {
  const auto candidates = provider.candidates(node.op);
  std::string reasons;
  for (const Candidate& c : candidates) {
    std::string reason;
    if (auto kernel = c.make(node, &reason)) return {std::move(kernel), c.name};
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", c.name, reason);
  }
  if (candidates.empty())
    reasons = fmt::format("the {} provider has no kernel for it", provider.name());
  if (why_not != nullptr) *why_not = reasons;
  return {};
}

}  // namespace steep

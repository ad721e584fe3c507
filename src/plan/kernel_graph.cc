#include "plan/kernel_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace steep {

NodeKernel choose_on(const Devices& devices, Node n, std::vector<Declined>& declined,
                     std::string* why_not) {
  const NodeSpec spec = spec_of(n);
  std::vector<Declined> refusals;
  const auto others = devices.others();
  for (size_t i = 0; i < others.size(); ++i) {
    std::string reason;
    ChosenKernel choice = choose_kernel(*others[i], spec, &reason);
    if (choice.kernel) return {std::move(choice.kernel), choice.candidate, static_cast<int>(i) + 1};
    refusals.push_back({n.name(), n.op(), std::string(others[i]->provider()), std::move(reason)});
  }
  ChosenKernel choice = choose_kernel(devices.host(), spec, why_not);
  if (choice.kernel) {
    std::move(refusals.begin(), refusals.end(), std::back_inserter(declined));
  } else {
    for (const Declined& d : refusals) *why_not += fmt::format("; {}: {}", d.device, d.reason);
  }
  return {std::move(choice.kernel), choice.candidate};
}

}  // namespace steep

#include "plan/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "ops/build.h"
#include "ops/op_def.h"
#include "ops/wide.h"
#include "plan/widen.h"
#include "runtime/budget.h"
#include "steep/error.h"

namespace steep {

Ints view_offsets(Node n) {
  const OpDef* def = find_op(n.op());
  if (def == nullptr) return {};
  if (def->view) return {0};
  return def->view_offsets != nullptr ? def->view_offsets(n) : Ints();
}

namespace {

/// Of the first device that has one; what the others said, for the host, is noted.
Lowered choose(Node n, const Devices& devices, std::vector<Declined>& declined,
               std::string* why_not) {
  const NodeSpec spec = spec_of(n);
  std::vector<Declined> said;
  const auto others = devices.others();
  for (size_t i = 0; i < others.size(); ++i) {
    std::string reason;
    ChosenKernel chosen = choose_kernel(*others[i], spec, &reason);
    if (chosen.kernel) return {std::move(chosen.kernel), chosen.candidate, static_cast<int>(i) + 1};
    said.push_back({n.name(), n.op(), std::string(others[i]->provider()), std::move(reason)});
  }
  ChosenKernel chosen = choose_kernel(devices.host(), spec, why_not);
  if (chosen.kernel) {
    std::move(said.begin(), said.end(), std::back_inserter(declined));
  } else {
    for (const Declined& d : said) *why_not += fmt::format("; {}: {}", d.device, d.reason);
  }
  return {std::move(chosen.kernel), chosen.candidate};
}

}  // namespace

LoweredGraph lower(Graph& g, const Devices& devices) {
  LoweredGraph result;
  std::string refused;
  std::string first_node, first_op;
  std::vector<Node> work = g.nodes();
  for (size_t k = 0; k < work.size(); ++k) {
    Node n = work[k];
    poll();
    if (!view_offsets(n).empty()) continue;
    std::string why_not;
    Lowered chosen = at_node(n, [&] {
      for (int i = 0; i < n.output_count(); ++i) {
        const Value y = n.output(i);
        if (y) require_bytes(y.type().nbytes(), to_string(y.type()));
      }
      return choose(n, devices, result.declined, &why_not);
    });
    if (chosen.kernel) {
      result.kernels.emplace(n.id(), std::move(chosen));
      continue;
    }
    const auto first_new = static_cast<uint32_t>(g.node_slots());
    std::vector<Value> parts;
    {
      Graph::Scope scope(g, n.phase(), n.name());
      const OpDef* def = find_op(n.op());
      parts = at_node(n, [&] {
        std::vector<Value> own;
        if (needs_float32(n)) own = in_float32(n);
        if (own.empty() && def != nullptr && def->decompose != nullptr) own = def->decompose(n);
        return own.empty() ? widened(n) : own;
      });
    }
    if (parts.empty()) {
      refused += fmt::format("\n    {} ({}): {}", n.name(), n.op(), why_not);
      if (first_node.empty()) first_node = n.name(), first_op = n.op();
      continue;
    }
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i) && parts.at(static_cast<size_t>(i)))
        g.replace_uses(n.output(i), parts[static_cast<size_t>(i)]);
    }
    for (uint32_t id = first_new; id < g.node_slots(); ++id) {
      Node part(&g, id);
      g.place_like(part, n);
      work.push_back(part);
    }
    g.erase(n);
  }
  if (!refused.empty()) {
    throw ProviderError(
        {.what = fmt::format("The {} provider cannot run:{}", devices.host().provider(), refused),
         .node = first_node,
         .op = first_op,
         .expected = "a kernel or a decomposition for every node",
         .remedy = "Convert the named nodes to supported dtypes, or freeze what leads to them."});
  }
  g.prune();
  return result;
}

}  // namespace steep

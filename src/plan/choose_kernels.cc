#include "plan/choose_kernels.h"

#include <fmt/format.h>

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

NodeKernel choose_kernel_of(Node n, const Devices& devices, KernelGraph& result,
                            std::string* why_not) {
  return at_node(n, [&] {
    for (int i = 0; i < n.output_count(); ++i) {
      const Value y = n.output(i);
      if (y) require_bytes(y.type().nbytes(), to_string(y.type()));
    }
    return choose_on(devices, n, result.declined, why_not);
  });
}

/// Replaces `n` by its decomposition, which is appended to `nodes`. Returns false if there is none.
bool decompose(Node n, std::vector<Node>& nodes) {
  Graph& g = n.graph();
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
  if (parts.empty()) return false;
  for (int i = 0; i < n.output_count(); ++i) {
    if (n.output(i) && parts.at(static_cast<size_t>(i)))
      g.replace_uses(n.output(i), parts[static_cast<size_t>(i)]);
  }
  for (uint32_t id = first_new; id < g.node_slots(); ++id) {
    Node part(&g, id);
    g.place_like(part, n);
    nodes.push_back(part);
  }
  g.erase(n);
  return true;
}

}  // namespace

KernelGraph choose_kernels(Graph& g, const Devices& devices) {
  KernelGraph result;
  std::string refusals;
  std::string first_node, first_op;
  std::vector<Node> work = g.nodes();
  for (size_t k = 0; k < work.size(); ++k) {
    Node n = work[k];
    poll();
    if (Ints offsets = view_offsets(n); !offsets.empty()) {
      result.views.emplace(n.id(), std::move(offsets));
      continue;
    }
    std::string why_not;
    NodeKernel choice = choose_kernel_of(n, devices, result, &why_not);
    if (choice.kernel) {
      result.kernels.emplace(n.id(), std::move(choice));
    } else if (!decompose(n, work)) {
      refusals += fmt::format("\n    {} ({}): {}", n.name(), n.op(), why_not);
      if (first_node.empty()) first_node = n.name(), first_op = n.op();
    }
  }
  if (!refusals.empty()) {
    throw ProviderError(
        {.what = fmt::format("The {} provider cannot run:{}", devices.host().provider(), refusals),
         .node = first_node,
         .op = first_op,
         .expected = "a kernel or a decomposition for every node",
         .remedy = "Convert the named nodes to supported dtypes, or freeze what leads to them."});
  }
  g.prune();
  return result;
}

}  // namespace steep

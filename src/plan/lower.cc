#include "plan/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "ops/build.h"
#include "ops/op_def.h"
#include "plan/widen.h"
#include "runtime/budget.h"
#include "steep/error.h"

namespace steep {
namespace {

/// A part of `x` along `axis` is contiguous when all extents before the axis are 1.
bool outermost(const Dims& dims, int64_t axis) {
  for (int64_t i = 0; i < axis; ++i) {
    if (dims[static_cast<size_t>(i)] != 1) return false;
  }
  return true;
}

int64_t row_bytes(Value x, int64_t axis) {
  const Dims dims = x.type().dims();
  return element_count(Dims(dims.begin() + axis + 1, dims.end())) *
         static_cast<int64_t>(size_of(x.dtype()));
}

Ints split_offsets(Node n) {
  Value x = n.input(0);
  const int64_t axis = normal_axis(n, n.attrs().integer("axis", 0), x.rank());
  if (!outermost(x.type().dims(), axis)) return {};
  const int64_t bytes = row_bytes(x, axis);
  Ints offsets;
  int64_t rows = 0;
  bool known = true;
  for (int i = 0; i < n.output_count(); ++i) {
    if (n.output(i) && !known) return {};
    offsets.push_back(rows * bytes);
    known = known && n.output(i);
    if (known) rows += n.output(i).type().dims()[static_cast<size_t>(axis)];
  }
  return offsets;
}

Ints slice_offset(Node n) {
  Value x = n.input(0), starts = n.input(1), axes = n.input(3), steps = n.input(4);
  auto constant = [](Value v) { return v && v.role() == Role::constant; };
  if (!constant(starts) || starts.tensor()->size() != 1 || (axes && !constant(axes)) ||
      (steps && (!constant(steps) || steps.tensor()->to_ints()[0] != 1))) {
    return {};
  }
  const int64_t axis = normal_axis(n, axes ? axes.tensor()->to_ints()[0] : 0, x.rank());
  const Dims dims = x.type().dims();
  if (!outermost(dims, axis)) return {};
  const int64_t extent = dims[static_cast<size_t>(axis)];
  int64_t start = starts.tensor()->to_ints()[0];
  if (start < 0) start += extent;
  return {std::clamp<int64_t>(start, 0, extent) * row_bytes(x, axis)};
}

}  // namespace

Ints view_offsets(Node n) {
  if (const OpDef* def = find_op(n.op()); def != nullptr && def->view) return {0};
  if (n.op() == "Split") return split_offsets(n);
  if (n.op() == "Slice") return slice_offset(n);
  return {};
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
  if (chosen.kernel) std::move(said.begin(), said.end(), std::back_inserter(declined));
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
        if (def != nullptr && def->decompose != nullptr) own = def->decompose(n);
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
    if (g.node_slots() == first_new) {
      throw InternalError(
          {.what = "A decomposition added no node.", .node = n.name(), .op = n.op()});
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

#include "plan/memory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "plan/assign_devices.h"
#include "plan/choose_kernels.h"
#include "plan/memory_planner.h"
#include "runtime/budget.h"

namespace steep {
namespace {

std::string ms_text(double ms) { return fmt::format("{:.3f} ms", ms); }

size_t result_bytes(Node n) {
  size_t bytes = 0;
  for (int o = 0; o < n.output_count(); ++o) bytes += n.output(o) ? n.output(o).type().nbytes() : 0;
  return bytes;
}

}  // namespace

MemoryReport memory_report(Graph graph, const Devices& devices, const MemoryLimit& limit,
                           std::span<const MemoryPoint> points) {
  const KernelGraph kernel_graph = choose_kernels(graph, devices);
  const std::vector<int> device = assign_devices(graph, kernel_graph);
  const KernelOf kernels = kernels_of(graph, kernel_graph);
  const ViewOf views = views_of(graph, kernel_graph);
  MemoryPlanner planner(graph, {kernels, views, device, devices});
  if (points.empty()) points = planner.search();
  const MemoryPoint plain = planner.measure({});
  const MemoryPoint& point =
      limit.allows(plain.bytes) ? plain : fastest_within(points, limit, plain.bytes);
  const auto with_held = [&](const MemoryPoint& p) {
    return MemoryPlan{.bytes = limit.counted(p.bytes), .ms = p.ms};
  };
  MemoryReport report{.limit = limit.bytes, .planned = with_held(point), .plain = with_held(plain)};
  for (const MemoryPoint& p : points) report.plans.push_back(with_held(p));
  const std::vector<char>& can = planner.can_recompute();
  for (Node n : graph.nodes()) {
    if (!can[n.id()] || kernels[n.id()] == nullptr) continue;
    const RecomputedNodes& recomputed = point.recomputed;
    report.choices.push_back({.node = n.name(),
                              .op = n.op(),
                              .bytes = result_bytes(n),
                              .ms = modelled_ms(n, kernels[n.id()]),
                              .again = serving(recomputed, n.id(), UINT32_MAX) != nullptr});
  }
  return report;
}

std::string MemoryReport::text() const {
  size_t node_width = 4, op_width = 2;
  for (const MemoryChoice& c : choices) {
    node_width = std::max(node_width, c.node.size());
    op_width = std::max(op_width, c.op.size());
  }
  std::string text;
  const auto row = [&](std::string_view node, std::string_view op, std::string_view bytes,
                       std::string_view ms, std::string_view backward) {
    text += fmt::format("{:{}}  {:{}}  {:>12}  {:>12}  {}\n", node, node_width, op, op_width, bytes,
                        ms, backward);
  };
  row("node", "op", "bytes", "to compute", "in backward");
  for (const MemoryChoice& c : choices) {
    row(c.node, c.op, std::to_string(c.bytes), ms_text(c.ms),
        c.again ? "computed again" : "not computed again");
  }
  const auto plan = [](const MemoryPlan& p) {
    return fmt::format("{}, {}", exact_bytes_text(p.bytes), ms_text(p.ms));
  };
  const auto again =
      std::count_if(choices.begin(), choices.end(), [](const MemoryChoice& c) { return c.again; });
  text += fmt::format("\nplanned peak     {}; {} of {} nodes are computed again\n", plan(planned),
                      again, choices.size());
  text += fmt::format("without a limit  {}\n", plan(plain));
  text += fmt::format("least            {}\n", plan(plans.back()));
  if (limit != 0) text += fmt::format("limit            {}\n", exact_bytes_text(limit));
  return text;
}

}  // namespace steep

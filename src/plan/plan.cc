#include "plan/plan.h"

#include <fmt/format.h>

#include "plan/assign_devices.h"
#include "plan/layout.h"

namespace steep {

Plan make_plan(Graph graph, KernelGraph kernel_graph, const Devices& devices) {
  const std::vector<int> device = assign_devices(graph, kernel_graph);
  const KernelOf kernels = kernels_of(graph, kernel_graph);
  const ViewOf views = views_of(graph, kernel_graph);
  Plan plan = lay_out(std::move(graph), {kernels, views, device, devices});
  return complete(std::move(plan), std::move(kernel_graph), 0);
}

namespace {

/// The copies between devices in one run, and the nodes that devices declined.
std::string crossings(const Plan& plan) {
  const auto others = plan.devices.others();
  std::string out;
  for (size_t d = 1; d <= others.size(); ++d) {
    size_t there = 0, back = 0, steps = 0;
    for (const Step& step : plan.steps) {
      if (step.device != static_cast<int>(d)) continue;
      if (step.kernel) ++steps;
      if (step.copy_bytes == 0) continue;
      const Buffer& to = plan.buffers[static_cast<size_t>(step.outputs[0].buffer)];
      (to.device == 0 ? back : there) += step.copy_bytes;
    }
    out += fmt::format("{}: {} of {} steps, arena {} bytes, {} bytes there and {} back in a run\n",
                       others[d - 1]->provider(), steps, plan.steps.size(),
                       plan.device_arena_bytes[d - 1], there, back);
  }
  for (const Declined& d : plan.declined)
    out += fmt::format("{} left {} ({}) to {}: {}\n", d.device, d.node, d.op,
                       d.runs_decomposed ? "its parts" : "the host", d.reason);
  return out;
}

}  // namespace

std::string to_text(const Plan& plan) {
  std::string out;
  auto show = [&](const Place& p) -> std::string {
    if (p.buffer < 0) return "_";
    const Buffer& b = plan.buffers[static_cast<size_t>(p.buffer)];
    static constexpr const char* kNames[] = {"arena", "input", "constant", "state", "output"};
    std::string storage = kNames[static_cast<size_t>(b.storage)];
    if (b.device != 0) {
      const auto& device = plan.devices.others()[static_cast<size_t>(b.device) - 1];
      storage = fmt::format("{}:{}", device->provider(), storage);
    }
    if (b.storage == Storage::arena) return fmt::format("{}+{}", storage, b.offset + p.offset);
    return p.offset == 0 ? fmt::format("{}{}", storage, b.index)
                         : fmt::format("{}{}+{}", storage, b.index, p.offset);
  };
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    if (s == plan.backward_begin) out += "--- backward\n";
    std::string ins, outs;
    for (const Place& p : step.inputs) ins += (ins.empty() ? "" : ", ") + show(p);
    for (const Place& p : step.outputs) outs += (outs.empty() ? "" : ", ") + show(p);
    out += fmt::format("{:4} {} = {}[{}]({}){}\n", s, outs, step.node ? step.node.op() : "copy",
                       step.candidate, ins, step.node ? "  # " + step.node.name() : "");
  }
  size_t sum = 0;
  for (const Buffer& b : plan.buffers)
    sum += b.storage == Storage::arena && b.device == 0 ? b.bytes : 0;
  out += fmt::format("arena: {} bytes for {} bytes of values\n", plan.arena_bytes, sum);
  return out + crossings(plan);
}

}  // namespace steep

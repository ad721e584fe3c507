#include "passes/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "runtime/budget.h"
#include "runtime/logs.h"
#include "steep/error.h"

namespace steep {
namespace {

template <Precision... kThese>
constexpr bool only(Precision p) {
  return ((p == kThese) || ...);
}

constexpr Pass kPasses[] = {
    {"remove_duplicates", remove_duplicates},
    {.name = "fuse_attention",
     .run = fuse_attention,
     .at = only<Precision::fp32, Precision::fp16>,
     .rows = fuse_attention_rows},
    {"fuse_long_attention", fuse_long_attention, only<Precision::bf16>},
    {"fuse_matmul", fuse_matmul},
    {"precision_bf16", nullptr, only<Precision::bf16>, precision_bf16},
    {"precision_fp16", nullptr, only<Precision::fp16>, precision_fp16},
    {"chunk_logits", chunk_logits, only<Precision::fp32>},
    {"fuse_gather_grad", fuse_gather_grad},
    {"recompute", recompute},
    {.name = "claim", .run = nullptr, .run_for = claim, .elsewhere = true},
    {"fuse_elementwise", fuse_elementwise},
    {"write_through", write_through},
};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

void check_passes(const std::set<std::string>& names) {
  for (const std::string& name : names) {
    if (std::any_of(std::begin(kPasses), std::end(kPasses),
                    [&](const Pass& p) { return p.name == name; }))
      continue;
    std::string known;
    for (const Pass& p : kPasses) known += fmt::format("{}{}", known.empty() ? "" : ", ", p.name);
    throw ModelError(
        {.what = "There is no pass of this name to disable.", .expected = known, .received = name});
  }
}

void run_passes(Graph& graph, const PassOptions& options) {
  check_passes(options.disabled);
  const Devices devices = options.devices != nullptr ? *options.devices : Devices::host_alone();
  for (const Pass& pass : kPasses) {
    if (options.disabled.count(std::string(pass.name)) != 0) continue;
    if (pass.at != nullptr && !pass.at(options.precision)) continue;
    if (!devices.want_pass(pass.name) || (pass.elsewhere && devices.only_host())) continue;
    poll();
    const size_t before = graph.node_count();
    const auto start = Profiler::Clock::now();
    TimedStage stage(options.profiler, options.stages, pass.name);
    if (pass.run_for != nullptr) {
      pass.run_for(graph, devices);
    } else {
      pass.run(graph);
    }
    graph.prune();
    verify(graph, pass.name);
    stage.done(graph.nodes().size());
    if (logs(Log::passes)) {
      const std::chrono::duration<double, std::milli> took = Profiler::Clock::now() - start;
      log(Log::passes, fmt::format("{:<20} {:5} → {:5} nodes {:9.3f} ms", pass.name, before,
                                   graph.node_count(), took.count()));
    }
    if (options.after) options.after(pass.name, graph);
  }
}

}  // namespace steep

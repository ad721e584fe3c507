#include "passes/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "autodiff/read_rows.h"
#include "autodiff/recognise.h"
#include "passes/part_by_part.h"
#include "runtime/budget.h"
#include "runtime/logs.h"
#include "steep/error.h"

namespace steep {
namespace {

template <Precision... kThese>
constexpr bool only(Precision p) {
  return ((p == kThese) || ...);
}

constexpr Pass kEarlyPasses[] = {
    {.name = "recognise", .run = recognise, .patterns = recognise_patterns},
    {.name = "compute_read_rows", .run = compute_read_rows, .patterns = read_rows_patterns},
};

constexpr Pass kPasses[] = {
    {"remove_duplicates", remove_duplicates},
    {.name = "fuse_attention",
     .run = fuse_attention,
     .at = only<Precision::fp32, Precision::fp16>,
     .patterns = fuse_attention_patterns},
    {"fuse_long_attention", fuse_long_attention, only<Precision::bf16>},
    {.name = "fuse_matmul", .run = fuse_matmul, .patterns = fuse_matmul_patterns},
    {.name = "fuse_batch_norm",
     .run = nullptr,
     .run_for = fuse_batch_norm,
     .patterns = fuse_batch_norm_patterns},
    {.name = "precision_bf16",
     .run = nullptr,
     .at = only<Precision::bf16>,
     .run_for = precision_bf16,
     .patterns = precision_patterns},
    {"precision_fp16", nullptr, only<Precision::fp16>, precision_fp16},
    {.name = "chunk_logits",
     .run = nullptr,
     .at = only<Precision::fp32>,
     .run_for = chunk_logits,
     .patterns = chunk_logits_patterns},
    {.name = "part_by_part", .run = part_by_part, .patterns = part_by_part_patterns},
    {.name = "fuse_gather_grad", .run = fuse_gather_grad, .patterns = fuse_gather_grad_patterns},
    {.name = "recompute", .run = recompute, .patterns = recompute_patterns},
    {.name = "keep_trace", .run = nullptr, .run_for = keep_trace, .patterns = keep_trace_patterns},
    {.name = "claim", .run = nullptr, .run_for = claim, .elsewhere = true},
    {.name = "fuse_elementwise", .run = fuse_elementwise, .patterns = fuse_elementwise_patterns},
    {.name = "write_through", .run = write_through, .patterns = write_through_patterns},
};

/// Logs a pass, for STEEP_LOGS=passes.
class PassLog {
 public:
  PassLog(std::string_view name, const Graph& graph)
      : name_(name), graph_(graph), before_(graph.node_count()) {}

  void done() const {
    if (!logs(Log::passes)) return;
    const std::chrono::duration<double, std::milli> took = Profiler::Clock::now() - start_;
    log(Log::passes, fmt::format("{:<20} {:5} → {:5} nodes {:9.3f} ms", name_, before_,
                                 graph_.node_count(), took.count()));
  }

 private:
  std::string_view name_;
  const Graph& graph_;
  size_t before_;
  Profiler::Clock::time_point start_ = Profiler::Clock::now();
};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

std::span<const Pass> early_passes() { return kEarlyPasses; }

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const auto& list : {early_passes(), passes()}) {
    for (const Pass& pass : list) names.emplace_back(pass.name);
  }
  return names;
}

void check_passes(const std::set<std::string>& names) {
  const std::vector<std::string> all = pass_names();
  for (const std::string& name : names) {
    if (std::find(all.begin(), all.end(), name) != all.end()) continue;
    throw ModelError({.what = "There is no pass of this name to disable.",
                      .expected = fmt::format("{}", fmt::join(all, ", ")),
                      .received = name});
  }
}

void run_early_pass(Graph& graph, std::string_view name, const std::set<std::string>& disabled) {
  const auto* pass = std::find_if(std::begin(kEarlyPasses), std::end(kEarlyPasses),
                                  [&](const Pass& p) { return p.name == name; });
  if (pass == std::end(kEarlyPasses))
    throw InternalError(
        {.what = "There is no early pass of this name.", .node = std::string(name)});
  if (disabled.count(std::string(name)) != 0) return;
  const PassLog pass_log(name, graph);
  pass->run(graph);
  pass_log.done();
}

void run_passes(Graph& graph, const PassOptions& options) {
  check_passes(options.disabled);
  const Devices devices = options.devices != nullptr ? *options.devices : Devices::host_alone();
  for (const Pass& pass : kPasses) {
    if (options.disabled.count(std::string(pass.name)) != 0) continue;
    if (pass.at != nullptr && !pass.at(options.precision)) continue;
    if (!devices.want_pass(pass.name) || (pass.elsewhere && devices.only_host())) continue;
    poll();
    const PassLog pass_log(pass.name, graph);
    TimedStage stage(options.profiler, options.stages, pass.name);
    if (pass.run_for != nullptr) {
      pass.run_for(graph, devices);
    } else {
      pass.run(graph);
    }
    graph.prune();
    verify(graph, pass.name);
    stage.done(graph.nodes().size());
    pass_log.done();
    if (options.after) options.after(pass.name, graph);
  }
}

}  // namespace steep

// The list of rewrites of every specialised graph.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "ir/graph.h"
#include "ops/pattern.h"
#include "passes/precision.h"
#include "runtime/profiler.h"

namespace steep {

/// One rewrite. Keeps the graph's inputs, outputs, states and meaning. REQUIRES: concrete types.
struct Pass {
  std::string_view name;
  void (*run)(Graph& graph);
  bool (*at)(Precision) = nullptr;  ///< the precisions at which it runs; null: all
  /// Called instead of `run`, for a pass that depends on the devices.
  void (*run_for)(Graph& graph, const Devices& devices) = nullptr;
  bool elsewhere = false;  ///< runs only if there are devices other than the host
  /// Lists its patterns; null: it has none.
  std::vector<PatternRuleInfo> (*patterns)() = nullptr;
};

struct PassOptions {
  std::set<std::string> disabled{};  ///< by name
  Precision precision = Precision::fp32;
  const Devices* devices = nullptr;             ///< which may decline a pass; null: the host only
  Profiler* profiler = nullptr;                 ///< gets an event for each pass
  std::vector<CompileStage>* stages = nullptr;  ///< gets a row for each pass
  /// Called with the graph after each pass.
  std::function<void(std::string_view pass, const Graph& graph)> after{};
};

/// The passes of run_passes(), in order.
std::span<const Pass> passes();

/// The passes that the graph of a model goes through once, before differentiation and before shapes
/// are bound.
std::span<const Pass> early_passes();

/// The names of all passes, which can be disabled.
std::vector<std::string> pass_names();

/// Throws ModelError, which lists the passes, if one of `names` is not a pass.
void check_passes(const std::set<std::string>& names);

/// Runs one of early_passes() unless it is disabled. Throws InternalError for another name.
void run_early_pass(Graph& graph, std::string_view name, const std::set<std::string>& disabled);

/// Runs every pass that is not disabled; prunes and verifies the graph after each. Throws as
/// check_passes() for the disabled names.
void run_passes(Graph& graph, const PassOptions& options);

// Each is in a file of its own.
void remove_duplicates(Graph& graph);    // nodes that compute what another node computed
void fuse_attention(Graph& graph);       // attention, forward and backward, into steep.Attention
void fuse_long_attention(Graph& graph);  // the same, of long sequences only
void fuse_matmul(Graph& graph);          // transposes, scale, bias and ReLU into steep.MatMul
/// ReLU and Clip, and their gradients, into steep.BatchNorm.
void fuse_batch_norm(Graph& graph, const Devices& devices);
void precision_bf16(Graph& graph, const Devices& devices);  // products in bfloat16
void precision_fp16(Graph& graph, const Devices& devices);  // products in float16
void chunk_logits(Graph& graph);  // scores over a vocabulary, a chunk of rows at a time
void chunk_logits(Graph& graph, const Devices& devices);  // and without copies of 16-bit scores
void fuse_gather_grad(Graph& graph);  // a sum with a gather's gradient into that gradient
void recompute(Graph& graph);         // values of forward, again in backward
void keep_trace(Graph& graph, const Devices& devices);  // of recurrent layers, for their gradients
void claim(Graph& graph, const Devices& devices);       // nodes that devices fuse
void fuse_elementwise(Graph& graph);  // chains of elementwise nodes into steep.Fused
void write_through(Graph& graph);     // updates without the copy of steep.Assign

// The patterns of passes.
std::vector<PatternRuleInfo> fuse_attention_patterns();
std::vector<PatternRuleInfo> fuse_matmul_patterns();
std::vector<PatternRuleInfo> fuse_batch_norm_patterns();
std::vector<PatternRuleInfo> precision_patterns();
std::vector<PatternRuleInfo> chunk_logits_patterns();
std::vector<PatternRuleInfo> fuse_gather_grad_patterns();
std::vector<PatternRuleInfo> recompute_patterns();
std::vector<PatternRuleInfo> keep_trace_patterns();
std::vector<PatternRuleInfo> fuse_elementwise_patterns();
std::vector<PatternRuleInfo> write_through_patterns();

}  // namespace steep

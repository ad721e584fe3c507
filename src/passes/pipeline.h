// The list of rewrites that every specialised graph goes through.
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
  bool (*at)(Precision) = nullptr;  ///< runs at these precisions alone; null: at all
  /// Instead of `run`, of a pass that asks the devices.
  void (*run_for)(Graph& graph, const Devices& devices) = nullptr;
  bool elsewhere = false;  ///< runs where there are other devices than the host
  /// Lists what it recognises; null: it follows no patterns.
  std::vector<RowInfo> (*rows)() = nullptr;
};

struct PassOptions {
  std::set<std::string> disabled{};  ///< by name
  Precision precision = Precision::fp32;
  const Devices* devices = nullptr;             ///< which may refuse a pass; null: the host
  Profiler* profiler = nullptr;                 ///< gets an event for each pass
  std::vector<CompileStage>* stages = nullptr;  ///< gets a row for each pass
  /// Is shown the graph after each pass.
  std::function<void(std::string_view pass, const Graph& graph)> after{};
};

/// Those that run_passes() runs, in this order.
std::span<const Pass> passes();

/// Those that the graph of a model goes through once, before it is differentiated and before shapes
/// are bound.
std::span<const Pass> early_passes();

/// The names of all: those that may be disabled.
std::vector<std::string> pass_names();

/// Throws ModelError, listing the passes, when one of `names` is none.
void check_passes(const std::set<std::string>& names);

/// Runs one of early_passes() unless it is disabled. Throws InternalError if it is none of them.
void run_early_pass(Graph& graph, std::string_view name, const std::set<std::string>& disabled);

/// Runs every pass that is not disabled, prunes and verifies after each. Throws as
/// check_passes() for those disabled.
void run_passes(Graph& graph, const PassOptions& options);

// One file each.
void remove_duplicates(Graph& graph);    // nodes that compute what another node computed
void fuse_attention(Graph& graph);       // attention, forward and backward, into steep.Attention
void fuse_long_attention(Graph& graph);  // the same, of long sequences only
void fuse_matmul(Graph& graph);          // transposes, scale, bias and ReLU into steep.MatMul
void precision_bf16(Graph& graph, const Devices& devices);  // products in bfloat16
void precision_fp16(Graph& graph, const Devices& devices);  // products in float16
void chunk_logits(Graph& graph);      // scores over a vocabulary, a chunk of rows at a time
void fuse_gather_grad(Graph& graph);  // a sum with a gather's gradient into that gradient
void recompute(Graph& graph);         // in backward, what forward need not keep
void claim(Graph& graph, const Devices& devices);  // what devices fuse themselves
void fuse_elementwise(Graph& graph);               // chains of elementwise nodes into steep.Fused
void write_through(Graph& graph);                  // updates without the copy of steep.Assign

// What they recognise.
std::vector<RowInfo> fuse_attention_rows();
std::vector<RowInfo> fuse_matmul_rows();
std::vector<RowInfo> precision_rows();
std::vector<RowInfo> chunk_logits_rows();
std::vector<RowInfo> fuse_gather_grad_rows();
std::vector<RowInfo> recompute_rows();
std::vector<RowInfo> fuse_elementwise_rows();
std::vector<RowInfo> write_through_rows();

}  // namespace steep

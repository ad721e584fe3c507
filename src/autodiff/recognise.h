// Finds groups of small operators that are one operator of Steep, before differentiation.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/pattern.h"

namespace steep {

/// Replaces subgraphs of small operators by one operator with its own kernel and vjp: Gelu (ONNX
/// has it since opset 20) for float32 and float64, exact or with tanh, and LayerNormalization
/// (since opset 17) for float32 over the last axis. Grouped products read transposed matrices in
/// place, convolutions pad themselves, and unrolled scans become steep.Recurrence (float32 and
/// float64; recognise_scan.h). Results differ by rounding. For the graph of a model, before
/// differentiation; bodies of control flow stay unchanged. REQUIRES: types inferred; trained values
/// are states, because constants may be matched as numbers.
void recognise(Graph& graph);

/// The rows of its pattern tables.
std::vector<PatternRuleInfo> recognise_patterns();

}  // namespace steep

// A loss over bfloat16 scores without a float32 copy of them.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/pattern.h"

namespace steep {

/// REQUIRES: there are kernels of steep.SoftmaxCrossEntropy and its gradient for bfloat16 scores.
void narrow_scores(Graph& graph);
std::vector<PatternRuleInfo> narrow_scores_patterns();

}  // namespace steep

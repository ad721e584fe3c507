// Large arrays that are made of parts, or divided into parts.
#pragma once

#include <vector>

#include "ops/pattern.h"

namespace steep {

/// A pass (pipeline.h).
void part_by_part(Graph& graph);
std::vector<PatternRuleInfo> part_by_part_patterns();

}  // namespace steep

// Whether what a loss reads are probabilities already, however a file spells them.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/pattern.h"

namespace steep {

/// The value before all nodes that move, cast or bound it.
Value before_moves(Value v);

/// Whether y holds probabilities, or is their mean over several models.
bool holds_probabilities(Value y);

/// The patterns of both, for documentation.
std::vector<PatternRuleInfo> probability_patterns();

}  // namespace steep

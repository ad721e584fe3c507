// The input that random operators read.
#pragma once

#include "ir/graph.h"

namespace steep {

/// The seed of `graph`, added on first use: int64[2] = {seed, number of the run}, which the engine
/// feeds.
Value seed_of(Graph& graph);

/// Whether an input of a graph is its seed, which no caller feeds.
bool is_seed(Value input);

}  // namespace steep

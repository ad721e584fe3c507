// The seed: the input that random operators read.
#pragma once

#include "ir/graph.h"

namespace steep {

/// The seed of `graph`, added on first use: int64[2] = {seed, number of the run}. The engine feeds
/// it.
Value seed_of(Graph& graph);

/// Whether an input of a graph is its seed. The caller does not feed the seed.
bool is_seed(Value input);

}  // namespace steep

// Frees what passes left in a graph.
#pragma once

#include "ir/graph.h"

namespace steep {

/// A copy without the nodes that were erased and the values that nothing reads, which are most of
/// those of a graph that went through passes. Inputs, states, names and the order of nodes stay.
/// Ids are new, and the names of what is gone are free. REQUIRES: nothing reads a result of an
/// erased node.
Graph compacted(const Graph& graph);

}  // namespace steep

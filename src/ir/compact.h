// Frees what passes left in a graph.
#pragma once

#include "ir/graph.h"

namespace steep {

/// A copy of a pruned graph without the nodes that were erased and the values that nothing reads,
/// which are most of those of a graph that went through passes. Inputs, states, names and the order
/// of nodes stay; gradient inputs become plain ones. Ids are new, and unread constants are gone.
Graph compacted(const Graph& graph);

}  // namespace steep

#pragma once

#include "ir/graph.h"
#include "plan/lowered.h"

namespace steep {

/// Chooses a kernel for every node that needs one, on the first device that has one, replacing
/// nodes that no kernel accepts by their decomposition. Throws ProviderError listing every node
/// that cannot run.
LoweredGraph lower(Graph& graph, const Devices& devices);

/// By output of `n`: the byte offset at which it lies in input 0, when all are that input's bytes
/// in place; empty otherwise.
Ints view_offsets(Node n);

}  // namespace steep

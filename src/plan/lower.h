#pragma once

#include <unordered_map>

#include "ir/graph.h"
#include "runtime/kernel.h"

namespace steep {

/// Chooses a kernel for every node that needs one (views need none), replacing nodes that no kernel
/// accepts by their decomposition. Result by node id. Throws ProviderError listing every node that
/// cannot run.
std::unordered_map<uint32_t, ChosenKernel> lower(Graph& graph, const Provider& provider);

/// By output of `n`: the byte offset at which it lies in input 0, when all are that input's bytes
/// in place; empty otherwise.
Ints view_offsets(Node n);

}  // namespace steep

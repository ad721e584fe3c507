#pragma once

#include <unordered_map>

#include "ir/graph.h"
#include "runtime/kernel.h"

namespace steep {

/// Chooses a kernel for every node that needs one (views need none), replacing nodes that no kernel
/// accepts by their decomposition. Result by node id. Throws ProviderError listing every node that
/// cannot run.
std::unordered_map<uint32_t, ChosenKernel> lower(Graph& graph, const Provider& provider);

/// Byte offset at which output `i` of `n` lies in its input 0, when it is that input's bytes in
/// place; -1 otherwise.
int64_t view_offset(Node n, int i);

}  // namespace steep

// Chooses the kernel of each node, and so the device that runs it.
#pragma once

#include "ir/graph.h"
#include "plan/kernel_graph.h"

namespace steep {

/// Chooses for every node a kernel on the first device that has one. A node that no kernel accepts
/// is replaced by its decomposition. Throws ProviderError that lists every node that cannot run.
KernelGraph choose_kernels(Graph& graph, const Devices& devices);

/// If all outputs of `n` are bytes of input 0 in place: the byte offset of each output in it; else
/// empty.
Ints view_offsets(Node n);

}  // namespace steep

#pragma once

#include <span>

#include "ir/graph.h"
#include "runtime/kernel.h"

namespace steep {

/// A copy of `graph` for concrete input types: every shape a number, shape arithmetic and
/// everything else that depends on constants alone computed once, nodes that do nothing removed.
/// `types` gives one concrete type per graph input, in order; those of gradient inputs are ignored,
/// they follow from the forward part. Throws ShapeError naming the node or input that does not fit,
/// ModelError naming a node whose output shape depends on data.
Graph specialise(const Graph& graph, std::span<const Type> types, const Provider& provider);

/// Runs one node now. `inputs` per node input; undefined tensors for absent ones. Throws
/// ProviderError when no kernel accepts it.
std::vector<Tensor> run_node(const Provider& provider, Node n, std::span<const Tensor> inputs);

/// What a kernel candidate sees of `n`. REQUIRES: concrete types. The spec borrows the node's
/// strings.
NodeSpec spec_of(Node n);

}  // namespace steep

#pragma once

#include <optional>
#include <span>

#include "ir/graph.h"
#include "runtime/kernel.h"

namespace steep {

/// A copy of `graph` for concrete input types: every shape a number, shape arithmetic and
/// everything else that depends on constants alone computed once, branches with a constant
/// condition taken, nodes that do nothing removed. `types` gives one concrete type per graph input,
/// in order; those of gradient inputs are ignored, they follow from the forward part. Throws
/// ShapeError naming the node or input that does not fit, ModelError naming a node whose output
/// shape depends on data.
Graph specialise(const Graph& graph, std::span<const Type> types, const Provider& provider);

/// A specialised graph in which some nodes had to stay as they were.
struct Specialised {
  Graph graph;
  /// Ids of nodes whose output shapes depend on data and of all that reads their results, in order.
  /// Every other node is concrete.
  std::vector<uint32_t> deferred;
};

/// As specialise(), as far as it can be done before anything has run. Inputs whose entry of `types`
/// is not concrete are not known yet; nodes that read them are deferred. With `only`, nodes of the
/// other phase are deferred, too, and optimizers unless they are all that is left: they overwrite
/// what other nodes read.
Specialised specialise_known(const Graph& graph, std::span<const Type> types,
                             const Provider& provider, std::optional<Phase> only = {});

/// Throws the ModelError of a node that cannot be planned.
[[noreturn]] void throw_data_dependent(Node n);

/// Runs one node now. `inputs` per node input; undefined tensors for absent ones. Throws
/// ProviderError when no kernel accepts it.
std::vector<Tensor> run_node(const Provider& provider, Node n, std::span<const Tensor> inputs);

/// The same for a node whose provider has a data-shaped kernel. REQUIRES: Provider::data_shaped.
std::vector<Tensor> run_data_shaped(const Provider& provider, Node n,
                                    std::span<const Tensor> inputs);

/// What a kernel candidate sees of `n`. REQUIRES: concrete types. The spec borrows the node's
/// strings.
NodeSpec spec_of(Node n);

}  // namespace steep

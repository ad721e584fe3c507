// Makes a graph concrete: a copy for the types of the inputs of one call.
#pragma once

#include <optional>
#include <span>

#include "device/device.h"
#include "device/kernel.h"
#include "ir/graph.h"

namespace steep {

/// A specialised graph, some of whose nodes may be deferred.
struct Specialised {
  Graph graph;
  /// Ids, in order, of nodes whose output shapes depend on data, and of all readers of their
  /// results. Every other node has concrete types.
  std::vector<uint32_t> deferred;
  /// Nodes of providers' operators that were decomposed, and the reasons of the devices.
  std::vector<Declined> decomposed{};
};

/// A copy of `graph` for concrete input types, rewritten as far as is possible before a run. Every
/// shape becomes a number; shape arithmetic and all other constant expressions are computed;
/// branches with a constant condition are inlined; identity nodes are removed; operators that no
/// device knows are decomposed. `types` has one type per graph input, in order. Types of gradient
/// inputs are ignored, because they follow from the forward part. An input whose type is not
/// concrete is unknown, and nodes that read it are deferred. With `only`, nodes of the other phase
/// are deferred, too, and so are optimizers unless no other node is left: they overwrite values
/// that other nodes read. Throws ShapeError that names the node or input that does not fit.
Specialised specialise_known(const Graph& graph, std::span<const Type> types,
                             const Devices& devices, std::optional<Phase> only = {});

/// Throws a ModelError for a node that cannot be planned.
[[noreturn]] void throw_data_dependent(Node n);

}  // namespace steep

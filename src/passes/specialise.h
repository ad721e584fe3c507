#pragma once

#include <optional>
#include <span>

#include "device/device.h"
#include "device/kernel.h"
#include "ir/graph.h"

namespace steep {

/// A specialised graph in which some nodes had to stay as they were.
struct Specialised {
  Graph graph;
  /// Ids of nodes whose output shapes depend on data and of all that reads their results, in order.
  /// Every other node is concrete.
  std::vector<uint32_t> deferred;
  /// Nodes of providers' own operators that run in parts, and what the devices said of them.
  std::vector<Declined> in_parts{};
};

/// A copy of `graph` for concrete input types: every shape a number, shape arithmetic and
/// everything else that depends on constants alone computed once, branches with a constant
/// condition inlined, identity nodes removed, and operators that no device knows decomposed, as far
/// as this is possible before a run. `types` gives one type per graph input, in order; those of
/// gradient inputs are ignored, they follow from the forward part. Inputs whose entry is not
/// concrete are not known yet; nodes that read them are deferred. With `only`, nodes of the other
/// phase are deferred, too, and optimizers unless they are all that is left: they overwrite what
/// other nodes read. Throws ShapeError naming the node or input that does not fit.
Specialised specialise_known(const Graph& graph, std::span<const Type> types,
                             const Devices& devices, std::optional<Phase> only = {});

/// Throws the ModelError of a node that cannot be planned.
[[noreturn]] void throw_data_dependent(Node n);

}  // namespace steep

// The nodes that an artifact may hold. Kernels need operands whose types fit the operator. In a
// full build shape inference checks that. A reader of artifacts has no inference and does not trust
// the file. It accepts a node if its operator is in this table and if, with the node's types, no
// kernel can access memory outside of its operands, whatever the data. Writers use the same table.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Throws ModelError, which names the first node that is not accepted. `views`: the nodes that
/// share the bytes of their first operand, by id, with the offsets of their results
/// (plan/kernel_graph.h). A node in `views` may have any operator, and only its offsets are
/// checked.
void require_known(const Graph& graph, const std::unordered_map<uint32_t, Ints>& views);

/// The operators of the table, sorted. The documentation lists them.
std::vector<std::string_view> artifact_ops();

}  // namespace steep

// What an artifact may hold. Kernels need operands whose types fit the operator; in a full build,
// shape inference checks this. A reader of artifacts has no inference and does not trust the file.
// A node is accepted if its operator is in this table and if, with its types, no kernel can access
// memory outside of its operands, whatever the data. Writers use the same table.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Throws ModelError naming the first node that does not pass. `views`: the nodes that share the
/// bytes of their first operand, by id, with the offsets of their results (plan/lowered.h); any
/// operator may be one, and of those only the offsets count.
void require_known(const Graph& graph, const std::unordered_map<uint32_t, Ints>& views);

/// The operators of the table, sorted. Docs list them.
std::vector<std::string_view> artifact_ops();

}  // namespace steep

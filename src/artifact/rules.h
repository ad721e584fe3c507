// What an artifact may hold. Kernels rely on operands whose types fit the operator, which shape
// inference has seen to in a full build. A reader of artifacts has no inference, and trusts nobody:
// a node passes if its operator is in this table and its types are such that no kernel of it, on
// whatever data, leaves its operands. Writers ask the same table.
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

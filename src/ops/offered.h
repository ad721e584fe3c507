// Operators that providers offer (steep/provider.h). Each has an OpDef under its name,
// "mirror.Swish", as ONNX's and ours have: find_op() knows it from the moment that it is offered to
// the end of the process. From any thread.
#pragma once

#include <functional>
#include <string>

#include "ops/op_def.h"

namespace steep {

/// The attribute of a node with its decomposition: a graph with an input for each operand that the
/// node has, in order.
inline constexpr std::string_view kParts = "body";

/// What the provider says of the types of a node's outputs. Extents may be unknown where those of
/// the node's inputs are.
using OfferedTypes = std::function<std::vector<Type>(Node n)>;

/// Makes an operator known. `types` is empty where its parts alone say what it makes; `in_parts`:
/// its nodes have parts. REQUIRES: no operator has the name.
void offer_op(const std::string& name, OfferedTypes types, bool in_parts);

/// The operator of that name, or nullptr.
const OpDef* find_offered(std::string_view name);

/// Throws ProviderError unless `said`, the type of output i as the provider has it, can be that of
/// its decomposition.
void require_agreement(Node n, int i, const Type& said, const Type& parts);

}  // namespace steep

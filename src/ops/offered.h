// Operators that providers offer (steep/provider.h). Each has an OpDef under its name, for example
// "mirror.Swish", like the operators of ONNX and Steep. find_op() finds it from the moment it is
// offered until the process ends. Thread-safe.
#pragma once

#include <functional>
#include <string>

#include "ops/op_def.h"

namespace steep {

/// The node attribute that holds the decomposition: a graph with one input for each operand of the
/// node, in order.
inline constexpr std::string_view kParts = "body";

/// The provider's type inference: the types of a node's outputs. Extents may be unknown where
/// extents of the inputs are unknown.
using OfferedTypes = std::function<std::vector<Type>(Node n)>;

/// Registers an operator. `types` may be empty when its decomposition determines the types.
/// `has_decomposition`: its nodes have a decomposition. REQUIRES: no operator has this name.
void offer_op(const std::string& name, OfferedTypes types, bool has_decomposition);

/// The offered operator of that name, or nullptr.
const OpDef* find_offered(std::string_view name);

/// Throws ProviderError unless `type`, the type of output i that the provider infers, is compatible
/// with `parts`, the type that the decomposition gives.
void require_agreement(Node n, int i, const Type& type, const Type& parts);

}  // namespace steep

// Operators that define gradients: see with_gradient.cc.
#pragma once

#include <string>

#include "ir/graph.h"

namespace steep {

/// Removes these operators from a graph that will not be differentiated any more.
void forget_gradients(Graph& g);

/// Checks that `gradient` has the shape of `x`, or one to which that broadcasts; returns
/// `gradient`. If shapes are unknown yet, the check runs once they are known. Throws ModelError
/// that names `node`, of operator `op`, and its `input`.
Value checked_gradient(Value gradient, Value x, const std::string& node, const std::string& op,
                       const std::string& input);

}  // namespace steep

// Operators that say what a gradient is: with_gradient.cc.
#pragma once

#include <string>

#include "ir/graph.h"

namespace steep {

/// Takes them out of a graph that is not to be differentiated any more.
void forget_gradients(Graph& g);

/// `gradient`, which must have the shape of `x` or what that broadcasts to. Where that is not known
/// yet it is checked once it is: then a ModelError names `node`, of operator `op`, and its `input`.
Value checked_gradient(Value gradient, Value x, const std::string& node, const std::string& op,
                       const std::string& input);

}  // namespace steep

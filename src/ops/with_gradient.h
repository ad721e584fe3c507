// Operators that say what a gradient is: with_gradient.cc.
#pragma once

#include "ir/graph.h"

namespace steep {

/// Takes them out of a graph that is not to be differentiated any more.
void forget_gradients(Graph& g);

}  // namespace steep

// Graph → ONNX model, for any runtime to run.
#pragma once

#include <string>

#include "ir/graph.h"

namespace steep {

/// Puts its decomposition in the place of every node that is not one of ONNX's operators. Throws
/// ModelError naming the nodes that have none.
void expand_steep_ops(Graph& graph);

/// A serialised model of ONNX's operators only: inputs, constants (as initializers under their own
/// names) and forward outputs of `graph`. Symbolic extents keep their names. The model is written
/// for the oldest opset, from 18 on, that can say all of it: the more runtimes know it.
///
/// Throws ModelError for what ONNX cannot say (an operator of our own, states, random draws that
/// depend on the engine's seed) and for more than protobuf's 2 GiB.
std::string export_model(const Graph& graph, const std::string& name);

/// A serialised model for people to look at, in Netron for one: any graph as it is, Steep's own
/// operators in the domain "steep", states and large constants as inputs. No runtime can run it.
/// Throws ModelError for more than protobuf's 2 GiB.
std::string write_compiled(const Graph& graph, const std::string& name);

}  // namespace steep

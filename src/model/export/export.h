// Writes a Graph as an ONNX model that any runtime can run.
#pragma once

#include <string>

#include "ir/graph.h"

namespace steep {

/// Replaces every node that is not an operator of ONNX by its decomposition. Throws ModelError with
/// the names of the nodes that have none.
void expand_steep_ops(Graph& graph);

/// A serialised model with only ONNX operators: inputs, constants (as initializers with their own
/// names) and forward outputs of `graph`. Symbolic extents keep their names. The model uses the
/// oldest opset, from 18 on, that can express all nodes, so that more runtimes support it.
///
/// Throws ModelError for what ONNX cannot express (one of Steep's own operators, states, random
/// numbers that depend on the engine's seed) and when the model exceeds protobuf's 2 GiB.
std::string export_model(const Graph& graph, const std::string& name);

/// A serialised model for people to inspect, for example in Netron: the graph unchanged, with
/// Steep's own operators in the domain "steep", and states and large constants as inputs. No
/// runtime can run it. Throws ModelError when it exceeds protobuf's 2 GiB.
std::string write_compiled(const Graph& graph, const std::string& name);

}  // namespace steep

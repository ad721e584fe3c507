// Reverse-mode differentiation, graph to graph: the backward pass consists of ordinary nodes. It is
// built once, with symbolic shapes. (Griewank & Walther, Evaluating Derivatives, 2nd ed., ch. 3:
// reverse mode.)
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "steep/check.h"

namespace steep {

/// Adds to `graph` the nodes that compute the gradients of Σ_i <seeds[i], outputs[i]> with respect
/// to `wrt`. seeds[i] has the shape and dtype of outputs[i]; null means 1 (then outputs[i] must be
/// a scalar or have one element). Nodes are added in phase `phase` and named after the node that
/// they differentiate. Returns one Value per entry of `wrt`, of the same type; null when no
/// differentiable path leads from the entry to an output. Throws ModelError that lists all ops on
/// the path without a gradient.
std::vector<Value> add_gradients(Graph& graph, std::span<const Value> outputs,
                                 std::span<const Value> seeds, std::span<const Value> wrt,
                                 Phase phase = Phase::backward);

/// All obstacles to differentiation between `wrt` and `outputs`; empty when the graph can be
/// trained.
std::vector<Obstacle> find_obstacles(Graph& graph, std::span<const Value> outputs,
                                     std::span<const Value> wrt);

/// The shortest path from a node to one of `outputs`: "decoder/Hardmax → decoder/MatMul → loss".
std::string path_to_output(const Graph& graph, Node from, std::span<const Value> outputs);

}  // namespace steep

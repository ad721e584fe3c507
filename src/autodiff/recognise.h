#pragma once

#include <vector>

#include "ir/graph.h"
#include "ops/pattern.h"

namespace steep {

/// Replaces what a model spells out in smaller operators by the one operator for it, which has a
/// kernel and a gradient rule of its own: Gelu (ONNX has it since opset 20) of float32 and float64,
/// exact or by tanh, and LayerNormalization (since opset 17) of float32 over the last axis. Results
/// differ by rounding. For the graph of a model, before it is differentiated; bodies of control
/// flow stay as they are.
/// REQUIRES: types inferred; what is trained is a state, for only constants are taken as such.
void recognise(Graph& graph);

/// What it recognises.
std::vector<RowInfo> recognise_rows();

}  // namespace steep

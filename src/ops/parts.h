// Helpers that rules of OpDef::export_decomposition share.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ops/op_def.h"

namespace steep {

/// LSTM, GRU or RNN (`cell`) with its attributes as a loop over its steps: x, w, r, b, lens, h0,
/// c0, p → y, h, and c for LSTM. Optional inputs may be null. Defined in recurrent_layer.cc.
std::vector<Value> recurrent_layer(Node n, const std::string& cell, std::span<const Value> inputs);
/// GridSample of x at the points of grid. Defined in grid_points.cc.
Value grid_points(Node n, Value x, Value grid);
/// RoiAlign. Defined in region_points.cc.
Value region_points(Node n, Value x, Value regions, Value images);
/// MaxRoiPool. Defined in region_points.cc.
Value region_maxima(Node n, Value x, Value regions);

using Parts = std::function<std::vector<Value>(std::span<const Value> inputs)>;
/// The gradients of Σ <dy, parts(inputs)> with respect to the inputs, by differentiating the nodes
/// that `parts` adds. One entry per input: null for inputs that are not float, and where no
/// gradient flows.
Grads differentiate_parts(const Parts& parts, std::span<const Value> inputs, const Grads& dy,
                          Differentiate differentiate);
/// As differentiate_parts(), but with zeros where no gradient flows.
std::vector<Value> gradients_in_parts(const Parts& parts, std::span<const Value> inputs,
                                      const Grads& dy, Differentiate differentiate);

}  // namespace steep

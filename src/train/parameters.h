// Which initializers are trained.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// The constants of `graph`, in the order of `initializers`, that TrainingOptions (trainable,
/// frozen) selects and on which one of `losses` depends differentiably. Throws ModelError: an
/// unknown name (with those most like it), a name that is no float initializer, nothing left to
/// train.
std::vector<Value> choose_parameters(const Graph& graph, std::span<const Value> losses,
                                     std::span<const std::string> initializers,
                                     const TrainingOptions& options);

}  // namespace steep

// Compiles a graph for the types of one set of inputs.
#pragma once

#include <optional>
#include <span>

#include "device/device.h"
#include "ir/graph.h"
#include "passes/pipeline.h"
#include "plan/memory_limit.h"
#include "plan/plan.h"

namespace steep {

/// Specialises the graph, runs the passes and plans the result. Returns std::nullopt if a shape
/// depends on data: then these stages run for each segment of the graph (flow/segment.cc).
std::optional<Plan> compile(const Graph& graph, std::span<const Type> types, const Devices& devices,
                            const PassOptions& options, const MemoryLimit& limit = {});

}  // namespace steep

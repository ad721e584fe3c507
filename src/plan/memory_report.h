// What a plan within a limit of memory keeps, what it computes again, and what others would cost.
#pragma once

#include <span>

#include "device/device.h"
#include "ir/graph.h"
#include "plan/memory_limit.h"
#include "plan/memory_point.h"
#include "steep/memory_report.h"

namespace steep {

/// Of the plan that make_plan() of memory_planner.h makes for the same graph, devices and limit.
/// Throws as it does. `found`: Plan::found of that plan; where it is empty, the report searches.
MemoryReport memory_report(Graph graph, const Devices& devices, const MemoryLimit& limit,
                           std::span<const MemoryPoint> found = {});

}  // namespace steep

// Reports what a plan within a memory limit keeps and computes again, and what other plans would
// cost.
#pragma once

#include <span>

#include "device/device.h"
#include "ir/graph.h"
#include "plan/memory_limit.h"
#include "plan/memory_point.h"
#include "steep/memory_report.h"

namespace steep {

/// The report on the plan that plan_within() makes for the same graph, devices
/// and limit. Throws as that function. `points`: Plan::found of that plan; if it is empty, the
/// report searches.
MemoryReport memory_report(Graph graph, const Devices& devices, const MemoryLimit& limit,
                           std::span<const MemoryPoint> points = {});

}  // namespace steep

// Converts the costs of a compiled graph to the public struct.
#pragma once

#include "program/program.h"
#include "steep/steep.h"

namespace steep {

/// `parameter_bytes`: of parameters that are inputs of the graph, not constants.
inline StepPlan step_plan(const PlanInfo& info, size_t parameter_bytes = 0) {
  return {
      .arena_bytes = info.arena_bytes,
      .parameter_bytes = parameter_bytes,
      .output_bytes = info.output_bytes,
      .constant_bytes = info.constant_bytes,
      .peak_bytes = parameter_bytes + info.arena_bytes + info.output_bytes + info.constant_bytes,
      .run_bytes = info.run_bytes,
      .memory_limit = info.memory_limit,
      .kernels = info.kernels,
      .specialise_ms = info.specialise_ms,
      .stages = info.stages};
}

}  // namespace steep

// The learning rate as a function of the step.
#pragma once

#include <cstdint>

#include "steep/steep.h"

namespace steep {

/// Throws ModelError for an unknown kind, for linear or cosine without total_steps > warmup_steps,
/// for negative counts, and for a ratio outside [0, 1].
void check_schedule(const ScheduleOptions& options);

/// Throws ModelError for a length or a ratio of a constant schedule, which has none.
void require_read(const ScheduleOptions& options);

/// Throws DataError for a rate that is negative, or not finite in float32.
void check_rate(double lr);

/// The factor on the base rate at step `step`, counted from 0, as ScheduleOptions defines it.
double schedule_factor(const ScheduleOptions& options, int64_t step);

}  // namespace steep

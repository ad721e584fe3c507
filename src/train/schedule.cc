#include "train/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/float32.h"
#include "steep/error.h"

namespace steep {

void check_schedule(const ScheduleOptions& options) {
  const bool constant = options.kind == "constant";
  if (!constant && options.kind != "linear" && options.kind != "cosine") {
    throw ModelError(ErrorParts{.what = "The schedule is unknown.",
                                .expected = "constant, linear or cosine",
                                .received = options.kind});
  }
  if (options.warmup_steps < 0) {
    throw ModelError(ErrorParts{.what = "The schedule's warmup_steps is negative.",
                                .received = std::to_string(options.warmup_steps)});
  }
  if (!constant && options.total_steps <= options.warmup_steps) {
    throw ModelError(
        ErrorParts{.what = fmt::format("The {} schedule needs its length.", options.kind),
                   .expected = fmt::format("total_steps above {}", options.warmup_steps),
                   .received = std::to_string(options.total_steps)});
  }
  if (!(options.min_lr_ratio >= 0 && options.min_lr_ratio <= 1)) {
    throw ModelError(ErrorParts{.what = "The schedule's min_lr_ratio is out of range.",
                                .expected = "0 to 1",
                                .received = fmt::format("{}", options.min_lr_ratio)});
  }
}

void require_read(const ScheduleOptions& options) {
  if (options.kind != "constant" || (options.total_steps == 0 && options.min_lr_ratio == 0)) return;
  throw ModelError(
      ErrorParts{.what = "A constant schedule has no length and no last rate.",
                 .node = "schedule",
                 .expected = "linear or cosine, with total_steps and min_lr_ratio",
                 .received = fmt::format("constant, with total_steps {} and min_lr_ratio {}",
                                         options.total_steps, options.min_lr_ratio),
                 .remedy = "Choose such a schedule, or leave these settings out."});
}

void check_rate(double lr) {
  if (lr >= 0 && fits_float32(lr)) return;
  throw DataError(ErrorParts{.what = "The learning rate is out of range.",
                             .expected = kRateRange,
                             .received = fmt::format("{}", lr)});
}

double schedule_factor(const ScheduleOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  if (options.kind == "constant") return 1;
  const double p = std::clamp(static_cast<double>(step - options.warmup_steps) /
                                  static_cast<double>(options.total_steps - options.warmup_steps),
                              0.0, 1.0);
  const double min = options.min_lr_ratio;
  if (options.kind == "linear") return 1 - (1 - min) * p;
  return min + (1 - min) * (1 + std::cos(std::numbers::pi * p)) / 2;
}

}  // namespace steep

#include "train/check_options.h"

#include <fmt/format.h>

#include <cmath>

#include "runtime/float32.h"
#include "steep/error.h"
#include "train/loss.h"
#include "train/optimizer.h"
#include "train/schedule.h"

namespace steep {
namespace {

void check_loss_scale(const LossScaleOptions& o) {
  const bool ordered = o.min > 0 && o.min <= o.initial && o.initial <= o.max && o.max <= 0x1p64;
  if (ordered && o.growth_interval >= 0) return;
  throw ModelError(
      ErrorParts{.what = "The settings of the loss scale are out of range.",
                 .expected = "0 < min <= initial <= max <= 2^64, growth_interval of at least 0",
                 .received = fmt::format("min {}, initial {}, max {}, growth_interval {}", o.min,
                                         o.initial, o.max, o.growth_interval)});
}

constexpr const char* kClipping =
    "a positive number that is finite in float32, or 0 for no clipping";

/// Checks that the value is in [0, high), and finite in float32.
void check_in(const char* name, double value, double high, const char* expected) {
  if (value >= 0 && value < high && fits_float32(value)) return;
  throw ModelError(ErrorParts{.what = fmt::format("{} is out of range.", name),
                              .expected = expected,
                              .received = fmt::format("{}", value)});
}

}  // namespace

void check_options(const TrainingOptions& options) {
  check_loss(options);
  check_loss_scale(options.loss_scale);
  check_optimizer(options.optimizer);
  check_schedule(options.schedule);
  require_read(options.schedule);
  for (const ParameterGroup& group : options.groups) {
    OptimizerOptions own = group.optimizer.value_or(options.optimizer);
    if (!group.optimizer) {
      check_in("lr_multiplier", group.lr_multiplier, INFINITY, kRateRange);
      own.lr *= group.lr_multiplier;
      own.weight_decay = group.weight_decay.value_or(own.weight_decay);
    }
    check_optimizer(own);
  }
  if (options.stochastic_rounding && options.master_weights) {
    throw ModelError(ErrorParts{.what = "Stochastic rounding cannot be used with master weights.",
                                .expected = "stochastic_rounding without master_weights",
                                .received = "both",
                                .remedy = "Leave one of them out: master weights lose nothing."});
  }
  check_in("clip_norm", options.clip_norm, INFINITY, kClipping);
  check_in("clip_value", options.clip_value, INFINITY, kClipping);
  check_in("ema_decay", options.ema_decay, 1, "a number below 1, or 0 for no averages");
}

}  // namespace steep

#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "steep/error.h"

namespace steep {
namespace {

TEST(Schedule, Constant) {
  EXPECT_EQ(schedule_factor({}, 0), 1);
  EXPECT_EQ(schedule_factor({}, 1'000'000), 1);
}

TEST(Schedule, WarmsUpInEqualSteps) {
  const ScheduleOptions s{.warmup_steps = 4};
  EXPECT_DOUBLE_EQ(schedule_factor(s, 0), 0.25);
  EXPECT_DOUBLE_EQ(schedule_factor(s, 3), 1);
  EXPECT_DOUBLE_EQ(schedule_factor(s, 4), 1);
}

TEST(Schedule, LinearReachesItsMinimumAndStays) {
  const ScheduleOptions s{
      .kind = "linear", .warmup_steps = 10, .total_steps = 110, .min_lr_ratio = 0.1};
  EXPECT_DOUBLE_EQ(schedule_factor(s, 10), 1);
  EXPECT_DOUBLE_EQ(schedule_factor(s, 60), 0.55);
  EXPECT_DOUBLE_EQ(schedule_factor(s, 110), 0.1);
  EXPECT_DOUBLE_EQ(schedule_factor(s, 9999), 0.1);
}

TEST(Schedule, CosineIsHalfAWave) {
  const ScheduleOptions s{.kind = "cosine", .total_steps = 100, .min_lr_ratio = 0.2};
  EXPECT_DOUBLE_EQ(schedule_factor(s, 0), 1);
  EXPECT_DOUBLE_EQ(schedule_factor(s, 50), 0.6);
  EXPECT_NEAR(schedule_factor(s, 25), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(schedule_factor(s, 100), 0.2);
}

TEST(Schedule, RefusesNonsense) {
  EXPECT_NO_THROW(check_schedule({}));
  EXPECT_THROW(check_schedule({.kind = "step"}), ModelError);
  EXPECT_THROW(check_schedule({.kind = "linear"}), ModelError);
  EXPECT_THROW(check_schedule({.kind = "cosine", .warmup_steps = 5, .total_steps = 5}), ModelError);
  EXPECT_THROW(check_schedule({.warmup_steps = -1}), ModelError);
  EXPECT_THROW(check_schedule({.min_lr_ratio = 1.5}), ModelError);
  EXPECT_THROW(check_schedule({.min_lr_ratio = NAN}), ModelError);
  EXPECT_NO_THROW(require_read({.warmup_steps = 5}));
  EXPECT_NO_THROW(require_read({.kind = "linear", .total_steps = 5, .min_lr_ratio = 0.1}));
  EXPECT_THROW(require_read({.total_steps = 5}), ModelError);
  EXPECT_THROW(require_read({.min_lr_ratio = 0.1}), ModelError);
}

}  // namespace
}  // namespace steep

#include "runtime/spinning.h"

#include <gtest/gtest.h>

namespace steep {
namespace {

TEST(SpinRule, SpinsForLongWithoutANeighbour) {
  SpinRule rule;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(rule.look(0.02, 2));
  EXPECT_FALSE(rule.look(0.3, 2));  // less than a neighbour of the same priority takes
}

TEST(SpinRule, SpinsBrieflyBesideANeighbour) {
  SpinRule two, eight;
  EXPECT_TRUE(two.look(0.4, 2));
  EXPECT_FALSE(eight.look(0.1, 8));
  EXPECT_TRUE(eight.look(0.15, 8));
}

TEST(SpinRule, KeepsItsMindUntilSeveralLooksInARowAreCalm) {
  SpinRule rule;
  EXPECT_TRUE(rule.look(0.4, 2));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(rule.look(0.2, 2));  // neither calm nor busy
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(rule.look(0, 2));
  EXPECT_TRUE(rule.look(0.2, 2));  // the row is broken
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(rule.look(0, 2));
  EXPECT_FALSE(rule.look(0, 2));
  EXPECT_TRUE(rule.look(0.4, 2));
}

}  // namespace
}  // namespace steep

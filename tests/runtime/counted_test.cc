#include "runtime/counted.h"

#include <gtest/gtest.h>

namespace steep {
namespace {

TEST(Counted, AgreesInNumber) {
  EXPECT_EQ(counted(1, "row"), "1 row");
  EXPECT_EQ(counted(size_t{0}, "row"), "0 rows");
  EXPECT_EQ(counted(int64_t{2}, "process"), "2 processes");
  EXPECT_EQ(counted(1, "class"), "1 class");
  EXPECT_EQ(counted(1, "axis", "axes"), "1 axis");
  EXPECT_EQ(counted(0, "axis", "axes"), "0 axes");
}

}  // namespace
}  // namespace steep

// Options of a training as texts.
#include "train/settings.h"

#include <gtest/gtest.h>

namespace steep {
namespace {

TEST(Settings, SaysWhatBothHaveAndWhatDiffers) {
  const Settings before{{"batch", "8"}, {"loss", "mse"}, {"lr", ""}};
  EXPECT_EQ(changed_settings(before, {{"batch", "16"}, {"loss", "mse"}, {"lr", "1"}, {"new", "2"}}),
            "batch 8 → 16, lr none → 1");
}

TEST(Settings, CutsTextsOfAFile) {
  const Settings before{{"loss", std::string(100'000, 'y') + "\xff"}};
  const std::string text = changed_settings(before, {{"loss", "mse"}});
  EXPECT_LT(text.size(), 200U);
  EXPECT_EQ(text.substr(0, 8), "loss yyy");
}

}  // namespace
}  // namespace steep

// Loading plug-ins: refusals give a reason, and the process stays usable.
#include <gtest/gtest.h>

#include <fstream>

#include "device/device.h"
#include "providers/mirror.h"
#include "runtime/utf8.h"
#include "steep/error.h"
#include "steep/steep.h"
#include "train/models.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using testing::on_mirror;

std::string refusal(const std::filesystem::path& path) {
  try {
    register_provider(path);
  } catch (const ProviderError& e) {
    return e.what();
  }
  return "";
}

std::string plugin(const char* name) { return std::string(STEEP_PLUGINS "/lib") + name + ".so"; }

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

class Plugins : public testing::TempFolder {};

TEST_F(Plugins, AreRefusedWhereTheyAreNone) {
  EXPECT_TRUE(has(refusal("/nonexistent/x.so"), "cannot be loaded"));
  EXPECT_TRUE(has(refusal(plugin("no_symbol")), "is not a provider"));
  const std::string other = refusal(plugin("another_version"));
  EXPECT_TRUE(has(other, "another version") && has(other, "steep_provider_7") &&
              has(other, "newer Steep"))
      << other;
  const std::string thrown = refusal(plugin("throws"));
  EXPECT_TRUE(has(thrown, "threw") && has(thrown, "the driver is too old")) << thrown;
  EXPECT_TRUE(has(refusal(plugin("not_here")), "cannot work on this machine"));
  EXPECT_TRUE(has(refusal(plugin("nameless")), "has no name"));
  EXPECT_TRUE(has(refusal(plugin("fails_at_entry")), "threw"));
  for (const char* name : {"fails_at_devices", "fails_in_devices"}) {
    const std::string failed = refusal(plugin(name));
    EXPECT_TRUE(has(failed, "cannot list its devices") &&
                (has(failed, "does not answer") || has(failed, "the bus is gone")))
        << failed;
  }
  const std::string table = refusal(plugin("fails_at_operators"));
  EXPECT_TRUE(has(table, "its operators") && has(table, "its table is gone")) << table;
  EXPECT_TRUE(has(refusal(plugin("fails_by_name")), "of this name already"));
  EXPECT_TRUE(has(refusal(plugin("fails_in_bytes")), "has no name"));
  EXPECT_TRUE(has(refusal(plugin("fails_without_table")), "table of operators"));
  EXPECT_TRUE(has(refusal(plugin("fails_by_size")), "table of operators"));
  std::ofstream(folder() / "empty.so").close();
  EXPECT_TRUE(has(refusal(folder() / "empty.so"), "cannot be loaded"));
  // and after all these failures
  EXPECT_EQ(available_providers().back(), "CPUExecutionProvider");
  EXPECT_EQ(register_provider(STEEP_MIRROR), "MirrorExecutionProvider");
  EXPECT_EQ(register_provider(STEEP_MIRROR), "MirrorExecutionProvider");
}

TEST(Liar, IsAProviderErrorWhateverItGetsWrong) {
  register_provider(plugin("liar"));
  const std::string bytes = testing::model_bytes(
      "m (float[3, 4] x) => (float[3, 4] y) <float[4] w = {1, 2, 3, 4}> { a = Mul(x, w) y = "
      "Softmax(a) }");
  const auto step = [&](const std::string& at) {
    TrainingSession session(std::as_bytes(std::span(bytes)),
                            {.loss = "mse",
                             .trainable = {"w"},
                             .precision = at == "multiplies" ? "bf16" : "fp32",
                             .providers = {{.name = "Liar", .options = {{"at", at}}}}});
    const Tensor x = Tensor::zeros(DType::f32, {3, 4});
    session.step({x, x});
    return session.dump(std::vector<Tensor>{x, x});
  };
  EXPECT_TRUE(has(step("nothing"), "liar")) << step("nothing");
  for (const char* at : {"close", "release", "drop_stream", "destroy", "reason in bytes"}) {
    SCOPED_TRACE(at);
    EXPECT_TRUE(is_utf8(step(at)));  // no error can be returned here, or the host runs the step
  }
  for (const char* at :
       {"open",          "candidates",    "make",          "allocate",      "copy",
        "stream",        "sync",          "execute",       "wants_pass",    "fuse",
        "no table",      "long table",    "small entries", "large entries", "no name",
        "name in bytes", "no make",       "no execute",    "no shares",     "no memory",
        "error of NULL", "error in bytes"}) {
    SCOPED_TRACE(at);
    try {
      step(at);
      ADD_FAILURE() << "no error";
    } catch (const ProviderError& e) {
      EXPECT_TRUE(is_utf8(e.what())) << e.what();
    }
  }
}

TEST(Registry, NamesProvidersWithDevices) {
  on_mirror();
  const std::vector<std::string> names = available_providers();
  ASSERT_GE(names.size(), 2U);
  EXPECT_EQ(names.back(), "CPUExecutionProvider");
  EXPECT_NE(std::find(names.begin(), names.end(), "MirrorExecutionProvider"), names.end());
}

TEST(Registry, RefusesChoicesThatCannotBe) {
  on_mirror();
  const auto open = [](ProviderChoice choice) {
    const std::vector<ProviderChoice> choices{std::move(choice)};
    const Devices devices{choices};
  };
  EXPECT_THROW(open({.name = "Nonesuch"}), ProviderError);
  EXPECT_THROW(open({.name = "Mirror", .options = {{"device_id", "2"}}}), ProviderError);
  EXPECT_THROW(open({.name = "Mirror", .options = {{"device_id", "x"}}}), ProviderError);
  EXPECT_THROW(open({.name = "Mirror", .options = {{"colour", "red"}}}), ProviderError);
  EXPECT_THROW(open({.name = "CPU", .options = {{"colour", "red"}}}), ProviderError);
  open({.name = "MirrorExecutionProvider", .options = {{"device_id", "0"}, {"memory_mb", "8"}}});
}

TEST(Registry, TheHostIsAlwaysTheLast) {
  const Devices alone = Devices::host_alone();
  EXPECT_TRUE(alone.only_host());
  const std::vector<ProviderChoice> choices = {on_mirror()[0], {.name = "CPU"}};
  const Devices both{choices};
  ASSERT_EQ(both.others().size(), 1U);
  EXPECT_EQ(both.others()[0]->provider(), "Mirror");
  EXPECT_TRUE(both.host().on_host());
  const std::vector<ProviderChoice> turned = {{.name = "CPU"}, on_mirror()[0]};
  EXPECT_TRUE(Devices{turned}.only_host());  // the CPU accepts all nodes
}

}  // namespace
}  // namespace steep

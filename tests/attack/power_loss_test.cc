// Power loss during saves, before their writes are on the disk. In every image that the disk may
// then hold, a version must be complete, and it must be at least the newest one whose save had
// reported success.
#include <gtest/gtest.h>

#include <cerrno>
#include <random>

#include "attack/attack.h"
#include "attack/recorded_disk.h"
#include "attack/saves.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::AttackReport;
using testing::RecordedDisk;
using testing::Saved;

/// Saves versions 1 to `saves`, over version 0 or over nothing.
struct Scene {
  const char* name;
  const Saved* saved;
  bool overwrite;
  bool no_exchange;  ///< a file system that cannot swap names
  bool killed;       ///< the process dies in each save except the last
};

constexpr int kSaves = 3;

class AttackPowerLoss : public testing::MemoryFolder, public ::testing::WithParamInterface<Scene> {
 protected:
  void TearDown() override {
    set_fault_hook(nullptr);
    MemoryFolder::TearDown();
  }
  fs::path path(const fs::path& disk) const { return disk / "run" / "saved"; }

  /// Records kSaves saves.
  RecordedDisk play(std::mt19937_64& random) {
    const Scene& scene = GetParam();
    const fs::path disk = folder() / "disk";
    fs::remove_all(disk);
    fs::create_directory(disk);
    if (scene.overwrite || scene.saved == &testing::kFile) fs::create_directory(disk / "run");
    if (scene.overwrite) scene.saved->save(path(disk), 0);
    RecordedDisk recorded(disk);
    begun_.clear();
    done_.clear();
    for (int version = 1; version <= kSaves; ++version) {
      const bool dies = scene.killed && version < kSaves;
      int left = dies ? static_cast<int>(random() % 40) : 1 << 30;
      begun_.push_back(recorded.calls());
      set_fault_hook([&](const DiskCall& call) -> int {
        if (left-- <= 0) return EIO;  // dead: all calls fail
        if (call.name == "exchange" && scene.no_exchange) return EINVAL;
        recorded.record(call);
        return 0;
      });
      try {
        scene.saved->save(path(disk), version);
      } catch (const IoError&) {
        EXPECT_TRUE(dies);
      }
      set_fault_hook(nullptr);
      const bool said = left > 0;
      done_.push_back(said ? recorded.calls() : SIZE_MAX);
    }
    return recorded;
  }

  /// The reason why the image is invalid for a power loss after `count` calls; "" if it is valid.
  std::string check(const fs::path& image, size_t count) const {
    const Scene& scene = GetParam();
    int64_t oldest = scene.overwrite ? 0 : -1, newest = oldest;
    for (size_t i = 0; i < begun_.size(); ++i) {
      const auto version = static_cast<int64_t>(i) + 1;
      if (begun_[i] < count) newest = version;
      if (done_[i] <= count) oldest = version;
    }
    try {
      const int64_t there = scene.saved->load(path(image)).value_or(-1);
      if (there >= oldest && there <= newest) return "";
      return fmt::format("version {} instead of {} to {}", there, oldest, newest);
    } catch (const Error& error) {
      return error.what();
    }
  }

  std::string check_next_save(const fs::path& image) const {
    const Saved& saved = *GetParam().saved;
    try {
      if (&saved == &testing::kFile) fs::create_directories(image / "run");
      saved.save(path(image), 10);
      saved.save(path(image), 11);
      if (saved.load(path(image)) != 11) return "the next save is not there";
      if (testing::entries(image / "run") != 1) return "something was left behind";
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  std::vector<size_t> begun_, done_;
};

TEST_P(AttackPowerLoss, LeavesWholeVersions) {
  AttackReport report("lost-writes");
  std::mt19937_64 random(1);
  const int images = testing::attack_size(40, 2000);
  for (int i = 0; i < images;) {
    const RecordedDisk disk = play(random);
    for (int k = 0; k < 20 && i < images; ++k, ++i) {
      const size_t count = random() % (disk.calls() + 1);
      const fs::path image = folder() / "image";
      fs::remove_all(image);
      disk.write_image(count, random, image);
      std::string why = check(image, count);
      if (why.empty() && i % 10 == 0) why = check_next_save(image);
      report.count(why.empty(), fmt::format("{} after {} calls: {}", GetParam().name, count, why));
    }
  }
}

TEST_P(AttackPowerLoss, WouldShowAMissingSync) {
  std::mt19937_64 random(2);
  int lost = 0;
  for (int i = 0; i < 10 && lost == 0; ++i) {
    RecordedDisk disk = play(random);
    disk.forget_syncs();
    for (int k = 0; k < 20 && lost == 0; ++k) {
      const fs::path image = folder() / "image";
      fs::remove_all(image);
      disk.write_image(disk.calls(), random, image);
      begun_.assign(kSaves, 0);
      lost += !check(image, disk.calls()).empty();
    }
  }
  EXPECT_GT(lost, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Saves, AttackPowerLoss,
    ::testing::Values(Scene{"first", &testing::kCheckpoint, false, false, false},
                      Scene{"overwrite", &testing::kCheckpoint, true, false, false},
                      Scene{"rename", &testing::kCheckpoint, true, true, false},
                      Scene{"first_after_deaths", &testing::kCheckpoint, false, false, true},
                      Scene{"overwrite_after_deaths", &testing::kCheckpoint, true, false, true},
                      Scene{"rename_after_deaths", &testing::kCheckpoint, true, true, true},
                      Scene{"sharded", &testing::kSharded, true, false, false},
                      Scene{"sharded_after_deaths", &testing::kSharded, true, true, true},
                      Scene{"new_file", &testing::kFile, false, false, false},
                      Scene{"file", &testing::kFile, true, false, false},
                      Scene{"file_after_deaths", &testing::kFile, true, false, true}),
    [](const auto& scene) { return scene.param.name; });

}  // namespace
}  // namespace steep

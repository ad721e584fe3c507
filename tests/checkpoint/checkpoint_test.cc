// Damaged files, a full disk, and concurrent saves of checkpoints. Failing calls, kills and power
// losses are tested in tests/attack.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "attack/saves.h"
#include "data/files.h"
#include "steep/error.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::read_bytes;
using testing::same;
using testing::sample;
using testing::write_bytes;

class CheckpointFolder : public testing::MemoryFolder {
 protected:
  void TearDown() override {
    set_fault_hook(nullptr);
    MemoryFolder::TearDown();
  }
  fs::path path() const { return folder() / "run" / "checkpoint"; }
  size_t entries_beside() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path().parent_path()), {}));
  }
};

TEST_F(CheckpointFolder, RoundTripAndOverwrite) {
  write_checkpoint(path(), sample(1));
  EXPECT_TRUE(same(read_checkpoint(path()), sample(1)));
  write_checkpoint(path(), sample(2));
  EXPECT_TRUE(same(read_checkpoint(path()), sample(2)));
  write_checkpoint(path().string() + "/", sample(3));
  EXPECT_TRUE(same(read_checkpoint(path()), sample(3)));
  EXPECT_EQ(entries_beside(), 1u) << "temporary folders were left behind";
}

TEST_F(CheckpointFolder, ThroughALink) {
  fs::create_directories(folder() / "elsewhere");
  fs::create_directory_symlink(folder() / "elsewhere", folder() / "link");
  write_checkpoint(folder() / "link", sample(1));
  EXPECT_TRUE(fs::is_symlink(folder() / "link"));
  EXPECT_TRUE(same(read_checkpoint(folder() / "elsewhere"), sample(1)));
}

TEST_F(CheckpointFolder, NothingThere) {
  EXPECT_THROW(read_checkpoint(path()), CheckpointError);
  fs::create_directories(path());
  EXPECT_THROW(read_checkpoint(path()), CheckpointError);
}

TEST_F(CheckpointFolder, ForeignFoldersStay) {
  fs::create_directories(path());
  write_bytes(path() / "thesis.tex", "years of work");
  EXPECT_THROW(write_checkpoint(path(), sample(1)), IoError);
  EXPECT_EQ(read_bytes(path() / "thesis.tex"), "years of work");
  write_bytes(folder() / "file", "x");
  EXPECT_THROW(write_checkpoint(folder() / "file", sample(1)), IoError);
  EXPECT_EQ(read_bytes(folder() / "file"), "x");
}

TEST_F(CheckpointFolder, EveryTruncationIsRefused) {
  write_checkpoint(path(), sample(1));
  for (const char* name : {"manifest.json", "model.safetensors", "optimizer.safetensors"}) {
    const std::string bytes = read_bytes(path() / name);
    for (size_t n = 0; n < bytes.size(); ++n) {
      write_bytes(path() / name, bytes.substr(0, n));
      EXPECT_THROW(read_checkpoint(path()), CheckpointError) << name << " cut to " << n;
    }
    fs::remove(path() / name);
    EXPECT_THROW(read_checkpoint(path()), CheckpointError) << name << " removed";
    write_bytes(path() / name, bytes);
  }
  EXPECT_TRUE(same(read_checkpoint(path()), sample(1)));
}

TEST_F(CheckpointFolder, EveryBitFlipIsRefused) {
  write_checkpoint(path(), sample(1));
  for (const char* name : {"manifest.json", "model.safetensors", "optimizer.safetensors"}) {
    const std::string bytes = read_bytes(path() / name);
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      write_bytes(path() / name, flipped);
      EXPECT_THROW(read_checkpoint(path()), CheckpointError) << name << " bit " << bit;
    }
    write_bytes(path() / name, bytes);
  }
}

TEST_F(CheckpointFolder, UserDataIsChecked) {
  Checkpoint checkpoint = sample(1);
  for (const std::string& bad : {std::string("{"), std::string("\xff"), std::string(2 << 20, ' '),
                                 std::string(100, '[') + std::string(100, ']')}) {
    checkpoint.user = bad;
    EXPECT_THROW(write_checkpoint(path(), checkpoint), DataError);
  }
  EXPECT_FALSE(fs::exists(path()));
}

TEST_F(CheckpointFolder, UserDataKeepsTheDigitsOfItsNumbers) {
  Checkpoint checkpoint = sample(1);
  // The state of a random generator has integers of 128 bits.
  const std::string text =
      R"({"inc":87136372517582989555478159403783844777,"lr":0.10,"x":[-1.5e-7,{},[],null,true,"\n,"],)"
      R"("user":{"user":-9223372036854775809}})";
  for (const auto& [given, back] : std::map<std::string, std::string>{
           {text, text}, {" [ 1 , 2.50,\n\"\\u00e9\" ] ", "[1,2.50,\"é\"]"}, {"7", "7"}}) {
    checkpoint.user = given;
    write_checkpoint(path(), checkpoint);
    EXPECT_EQ(read_checkpoint(path()).user, back);
  }
}

TEST_F(CheckpointFolder, WhatCouldNotBeLoadedReplacesNothing) {
  write_checkpoint(path(), sample(1));
  // With indentation, half a megabyte of lists takes 64 times as much.
  Checkpoint grows = sample(2);
  grows.user = std::string(60, '[') + "0";
  while (grows.user.size() < size_t{1} << 19) grows.user += ",0";
  grows.user += std::string(60, ']');
  write_checkpoint(path(), grows);
  EXPECT_TRUE(same(read_checkpoint(path()), grows));

  for (const auto& damage : std::vector<std::function<void(Checkpoint&)>>{
           [](Checkpoint& c) { c.step = INT64_MIN; }, [](Checkpoint& c) { c.lr = INFINITY; },
           [](Checkpoint& c) { c.loss_scale = INFINITY; },
           [](Checkpoint& c) { c.schedule = std::string(5 << 20, 'x'); }}) {
    Checkpoint bad = sample(3);
    damage(bad);
    EXPECT_THROW(write_checkpoint(path(), bad), DataError);
    EXPECT_TRUE(same(read_checkpoint(path()), grows));
  }
  Checkpoint most = sample(4);
  most.step = INT64_MAX;
  write_checkpoint(path(), most);
  EXPECT_TRUE(same(read_checkpoint(path()), most));
  EXPECT_EQ(entries_beside(), 1u);
}

/// Changes the new checkpoint before it is moved into place.
TEST_F(CheckpointFolder, WhatWasChangedWhileItWasWrittenReplacesNothing) {
  write_checkpoint(path(), sample(1));
  for (const char* what : {"cut", "removed", "unlocked"}) {
    bool done = false;
    set_fault_hook([&](const DiskCall& call) {
      const fs::path folder = call.path;  // synced after all of its files are written
      if (call.name != "fsync" ||
          folder.filename().string().find(".steep-tmp.") == std::string::npos)
        return 0;
      done = true;
      if (what == std::string("cut")) write_bytes(folder / "model.safetensors", "");
      if (what == std::string("removed")) fs::remove(folder / "optimizer.safetensors");
      if (what == std::string("unlocked")) fs::remove(path().string() + ".steep-lock");
      return 0;
    });
    EXPECT_THROW(write_checkpoint(path(), sample(2)), IoError) << what;
    set_fault_hook(nullptr);
    EXPECT_TRUE(done);
    EXPECT_TRUE(same(read_checkpoint(path()), sample(1))) << what;
    EXPECT_EQ(entries_beside(), 1u) << what;
  }
}

TEST_F(CheckpointFolder, SaysThatItIsInPlaceWhenItsFolderCannotBeSynced) {
  write_checkpoint(path(), sample(1));
  set_fault_hook([&](const DiskCall& call) {
    return call.name == "fsync" && call.path == path().parent_path().native() ? EIO : 0;
  });
  try {
    write_checkpoint(path(), sample(2));
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(error.parts().what.find("new and in place"), std::string::npos) << error.what();
  }
  set_fault_hook(nullptr);
  EXPECT_TRUE(same(read_checkpoint(path()), sample(2)));
}

TEST_F(CheckpointFolder, LinksThatLeadNowhereYet) {
  fs::create_symlink("elsewhere/run", folder() / "link");
  write_checkpoint(folder() / "link", sample(1));
  EXPECT_TRUE(fs::is_symlink(folder() / "link"));
  EXPECT_TRUE(same(read_checkpoint(folder() / "elsewhere" / "run"), sample(1)));
}

TEST_F(CheckpointFolder, DestinationsAreCheckedBeforehand) {
  check_checkpoint_destination(path());
  EXPECT_TRUE(fs::is_empty(folder()));
  write_checkpoint(path(), sample(1));
  check_checkpoint_destination(path());
  EXPECT_EQ(entries_beside(), 1u);
  write_bytes(folder() / "file", "x");
  EXPECT_THROW(check_checkpoint_destination(folder() / "file"), IoError);
  EXPECT_THROW(check_checkpoint_destination(folder() / "file" / "run"), IoError);
  EXPECT_THROW(check_checkpoint_destination(folder() / std::string(250, 'x')), IoError);
  write_bytes(path() / "thesis.tex", "years of work");
  EXPECT_THROW(check_checkpoint_destination(path()), IoError);
}

TEST_F(CheckpointFolder, NamesOfFoldersThatSavesRemoveAreRefused) {
  write_checkpoint(path(), sample(1));
  for (const char* name : {"checkpoint.steep-tmp.1-1", "checkpoint.steep-old.1-1"}) {
    const fs::path left = path().parent_path() / name;  // by a process that was killed
    EXPECT_THROW(check_checkpoint_destination(left), IoError);
    EXPECT_THROW(write_checkpoint(left, sample(2)), IoError);
    fs::create_directory(left);
    EXPECT_THROW(write_checkpoint(left, sample(2)), IoError);
    EXPECT_TRUE(fs::is_empty(left));
  }
  EXPECT_TRUE(same(read_checkpoint(path()), sample(1)));
}

TEST_F(CheckpointFolder, LoadingOutlivesAReplacement) {
  // Replaces the checkpoint between opening the folder and reading it.
  write_checkpoint(path(), sample(1));
  bool done = false;
  set_fault_hook([&](const DiskCall& call) {
    if (call.name != "read" || done) return 0;
    done = true;
    write_checkpoint(path(), sample(2));
    return 0;
  });
  const Checkpoint read = read_checkpoint(path());
  set_fault_hook(nullptr);
  EXPECT_TRUE(done);
  EXPECT_TRUE(same(read, sample(1)) || same(read, sample(2)));
}

TEST_F(CheckpointFolder, FullDisk) {
  const fs::path disk = folder() / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small disk needs root";
  }
  write_checkpoint(disk / "checkpoint", sample(1));
  Checkpoint large = sample(2);
  large.weights["large"] = Tensor::zeros(DType::f32, {1 << 20});
  EXPECT_THROW(write_checkpoint(disk / "checkpoint", large), IoError);
  EXPECT_TRUE(same(read_checkpoint(disk / "checkpoint"), sample(1)));
  write_checkpoint(disk / "checkpoint", sample(3));
  EXPECT_TRUE(same(read_checkpoint(disk / "checkpoint"), sample(3)));
  ::umount(disk.c_str());
}

}  // namespace
}  // namespace steep

// What can happen to a checkpoint: damage of its files, a full disk, savers that meet. Failing
// calls, kills and power losses are in tests/attack.
#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include "attack/saves.h"
#include "steep/error.h"
#include "train/files.h"
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

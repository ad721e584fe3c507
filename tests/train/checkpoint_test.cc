// What can happen to a checkpoint: damage of its files, a full disk, a process that dies at any
// system call.
#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <cerrno>
#include <optional>

#include "steep/error.h"
#include "train/files.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::read_bytes;
using testing::same_bits;
using testing::write_bytes;

Checkpoint sample(float value) {
  return {.fingerprint = "0123456789abcdef",
          .weights = {{"w", Tensor::from<float>({value, 2, 3}, {3})}, {"b", Tensor::scalar(value)}},
          .moments = {{"exp_avg/w", Tensor::from<float>({4, 5, value}, {3})}},
          .step = 17,
          .seed = ~uint64_t{0},
          .run_count = 18,
          .lr = 0.1,
          .schedule = "constant",
          .user = R"({"epoch":3,"note":"a b"})"};
}

bool same(const Checkpoint& a, const Checkpoint& b) {
  auto equal = [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::all_of(x.begin(), x.end(), [&](const auto& item) {
             return y.count(item.first) == 1 && same_bits(item.second, y.at(item.first));
           });
  };
  return a.fingerprint == b.fingerprint && a.step == b.step && a.seed == b.seed &&
         a.run_count == b.run_count && a.lr == b.lr && a.schedule == b.schedule &&
         a.user == b.user && equal(a.weights, b.weights) && equal(a.moments, b.moments);
}

class CheckpointFolder : public testing::TempFolder {
 protected:
  void TearDown() override {
    set_fault_hook(nullptr);
    TempFolder::TearDown();
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

/// Makes the k-th call of a save fail, once or from then on.
struct Fault {
  int at;
  int error;
  bool persistent;
};

/// Runs `save` with the fault; true when the k-th call was reached.
template <typename F>
bool with_fault(const Fault& fault, F&& save) {
  int calls = 0;
  set_fault_hook([&](const DiskCall&) {
    const int call = calls++;
    return call == fault.at || (fault.persistent && call > fault.at) ? fault.error : 0;
  });
  save();
  set_fault_hook(nullptr);
  return calls > fault.at;
}

class Faults : public CheckpointFolder,
               public ::testing::WithParamInterface<std::tuple<int, bool>> {};

TEST_P(Faults, AnErrorAtAnyCallLeavesAWholeCheckpoint) {
  const auto [error, persistent] = GetParam();
  for (int at = 0;; ++at) {
    fs::remove_all(folder() / "run");
    write_checkpoint(path(), sample(1));
    bool threw = false;
    const bool reached = with_fault({at, error, persistent}, [&] {
      try {
        write_checkpoint(path(), sample(2));
      } catch (const IoError&) {
        threw = true;
      }
    });
    const Checkpoint now = read_checkpoint(path());
    EXPECT_TRUE(same(now, sample(1)) || same(now, sample(2))) << "call " << at;
    EXPECT_TRUE(threw || same(now, sample(2))) << "call " << at;
    // The next save works, and cleans up.
    write_checkpoint(path(), sample(3));
    EXPECT_TRUE(same(read_checkpoint(path()), sample(3))) << "call " << at;
    write_checkpoint(path(), sample(3));
    EXPECT_EQ(entries_beside(), 1u) << "call " << at;
    if (!reached) break;
    ASSERT_LT(at, 1000);
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, Faults,
                         ::testing::Combine(::testing::Values(ENOSPC, EIO), ::testing::Bool()));

/// The process dies before call `at` of a save; `no_exchange`: on a file system that cannot swap
/// names. Returns false when the save ended before.
bool killed_at(int at, bool no_exchange, const std::function<void()>& save) {
  const pid_t child = ::fork();
  if (child == 0) {
    int calls = 0;
    set_fault_hook([&](const DiskCall& call) {
      if (calls++ == at) ::_exit(42);
      return call.name == "exchange" && no_exchange ? EINVAL : 0;
    });
    try {
      save();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 1);
  return WEXITSTATUS(status) == 42;
}

TEST_F(CheckpointFolder, DeathAtAnyCallLeavesTheOldOrTheNew) {
  for (bool no_exchange : {false, true}) {
    for (int at = 0;; ++at) {
      fs::remove_all(folder() / "run");
      write_checkpoint(path(), sample(1));
      const bool died = killed_at(at, no_exchange, [&] { write_checkpoint(path(), sample(2)); });
      const Checkpoint now = read_checkpoint(path());
      EXPECT_TRUE(same(now, sample(1)) || same(now, sample(2))) << "call " << at;
      write_checkpoint(path(), sample(3));
      EXPECT_TRUE(same(read_checkpoint(path()), sample(3))) << "call " << at;
      write_checkpoint(path(), sample(3));
      EXPECT_EQ(entries_beside(), 1u) << "call " << at;
      if (!died) break;
      ASSERT_LT(at, 1000);
    }
  }
}

TEST_F(CheckpointFolder, DeathDuringTheFirstSaveLeavesNothingOrAWholeOne) {
  for (int at = 0;; ++at) {
    fs::remove_all(folder() / "run");
    const bool died = killed_at(at, false, [&] { write_checkpoint(path(), sample(2)); });
    if (fs::exists(path())) {
      EXPECT_TRUE(same(read_checkpoint(path()), sample(2))) << "call " << at;
    } else {
      EXPECT_TRUE(died);
      EXPECT_THROW(read_checkpoint(path()), CheckpointError);
    }
    if (!died) break;
  }
}

TEST_F(CheckpointFolder, InterruptedCallsAreRepeated) {
  int calls = 0;
  set_fault_hook([&](const DiskCall&) { return calls++ % 2 == 0 ? EINTR : 0; });
  write_checkpoint(path(), sample(1));
  set_fault_hook(nullptr);
  EXPECT_TRUE(same(read_checkpoint(path()), sample(1)));
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

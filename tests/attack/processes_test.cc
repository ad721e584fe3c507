// Processes that are killed while they save, and processes that save and load the same path at the
// same time.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <random>
#include <thread>

#include "attack/attack.h"
#include "attack/saves.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::AttackReport;
using testing::Saved;
using Clock = std::chrono::steady_clock;

/// Shared memory of the processes. Zero-initialised.
struct Board {
  std::atomic<int64_t> begun, done;  ///< newest version
  std::atomic<bool> stop;
  std::atomic<uint64_t> saves, loads, failed_saves, failed_loads;
  char why[400];  ///< reason of a failure
};

class AttackProcesses : public ::testing::WithParamInterface<std::tuple<const Saved*, bool>>,
                        public testing::MemoryFolder {
 protected:
  void SetUp() override {
    MemoryFolder::SetUp();
    void* memory =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    board_ = new (memory) Board();
  }
  void TearDown() override {
    ::munmap(board_, sizeof(Board));
    MemoryFolder::TearDown();
  }
  // The long version uses a disk.
  fs::path root() const override {
    return testing::attack_at_length() ? fs::temp_directory_path() : MemoryFolder::root();
  }
  const Saved& saved() const { return *std::get<0>(GetParam()); }
  fs::path path() const { return folder() / "saved"; }

  template <typename F>
  pid_t start(F&& body) const {
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // children die with the test
    if (std::get<1>(GetParam())) {       // a file system that cannot swap names
      set_fault_hook([](const DiskCall& call) { return call.name == "exchange" ? EINVAL : 0; });
    }
    body();
    ::_exit(0);
  }
  void failed(std::atomic<uint64_t>& counter, const char* why) const {
    if (counter++ == 0) ::snprintf(board_->why, sizeof board_->why, "%s", why);
  }

  Board* board_ = nullptr;
};

TEST_P(AttackProcesses, KilledAtAnyTime) {
  AttackReport report("random-kills");
  std::mt19937_64 random(1);
  for (int i = testing::attack_size(7, 400); i > 0; --i) {
    const pid_t child = start([&] {
      for (;;) {
        const int64_t version = board_->begun = board_->done + 1;
        saved().save(path(), version);
        board_->done = version;
      }
    });
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % testing::attack_size(10'000, 100'000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    std::string why = WIFSIGNALED(status) ? "" : "a save failed";
    try {
      const int64_t there = saved().load(path()).value_or(0);
      if (there < board_->done || there > board_->begun) {
        why = fmt::format("version {} is there", there);
      }
      board_->done = there;
    } catch (const Error& error) {
      why = error.what();
    }
    report.count(why.empty(),
                 fmt::format("{} after {} saves: {}", saved().name, board_->done.load(), why));
  }
  saved().save(path(), 1);
  saved().save(path(), 2);
  EXPECT_EQ(testing::entries(folder()), 1u);
}

TEST_P(AttackProcesses, SaveAndLoadTogether) {
  constexpr int kSavers = 4, kLoaders = 2;
  AttackReport report("savers-and-loaders");
  saved().save(path(), 0);
  std::vector<pid_t> children;
  for (int saver = 0; saver < kSavers; ++saver) {
    children.push_back(start([&, saver] {
      for (int64_t version = int64_t{1'000'000} * saver; !board_->stop; ++version) {
        try {
          saved().save(path(), version);
          ++board_->saves;
        } catch (const std::exception& error) {
          failed(board_->failed_saves, error.what());
        }
      }
    }));
  }
  for (int loader = 0; loader < kLoaders; ++loader) {
    children.push_back(start([&] {
      while (!board_->stop) {
        try {
          if (!saved().load(path())) throw DataError("it is gone");
          ++board_->loads;
        } catch (const std::exception& error) {
          failed(board_->failed_loads, error.what());
        }
      }
    }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(testing::attack_size(400, 60'000)));
  board_->stop = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  fmt::print("{}: {} saves, {} failed; {} loads, {} failed. {}\n", saved().name,
             board_->saves.load(), board_->failed_saves.load(), board_->loads.load(),
             board_->failed_loads.load(), board_->why);
  const auto count = [&](uint64_t good, uint64_t bad) {
    for (uint64_t i = 0; i < good + bad; ++i) report.count(i >= bad, board_->why);
  };
  count(board_->saves, board_->failed_saves);
  count(board_->loads, board_->failed_loads);
  saved().save(path(), 1);
  EXPECT_EQ(testing::entries(folder()), 1u);
}

INSTANTIATE_TEST_SUITE_P(Saves, AttackProcesses,
                         ::testing::Values(std::tuple(&testing::kCheckpoint, false),
                                           std::tuple(&testing::kCheckpoint, true),
                                           std::tuple(&testing::kSharded, false),
                                           std::tuple(&testing::kFile, false)));

}  // namespace
}  // namespace steep

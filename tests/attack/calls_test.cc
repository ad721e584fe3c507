// Every system call of a save, in turn, fails or is the last one before the process dies.
// Afterwards the old or the new version must be complete; the next save must work and leave no
// other files.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>

#include "attack/attack.h"
#include "attack/saves.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
using testing::AttackReport;
using testing::Saved;

/// A fault injected into the calls of a save, from call number `at` on.
struct Fault {
  const char* name;
  int result;  ///< result of the hook: an errno, or -n
  int count;   ///< number of affected calls
};
constexpr int kAll = 1 << 30;

class AttackCalls : public testing::MemoryFolder,
                    public ::testing::WithParamInterface<std::tuple<const Saved*, bool, bool>> {
 protected:
  void TearDown() override {
    set_fault_hook(nullptr);
    MemoryFolder::TearDown();
  }
  const Saved& saved() const { return *std::get<0>(GetParam()); }
  bool overwrite() const { return std::get<1>(GetParam()); }
  /// A file system that cannot swap names.
  bool no_exchange() const { return std::get<2>(GetParam()); }
  fs::path path() const { return folder() / "run" / "saved"; }

  void begin() const {
    fs::remove_all(folder() / "run");
    // Only checkpoints create parent folders.
    if (&saved() == &testing::kFile) fs::create_directory(folder() / "run");
    if (overwrite()) saved().save(path(), 1);
  }
  int no_swap(const DiskCall& call) const {
    return call.name == "exchange" && no_exchange() ? EINVAL : 0;
  }
  /// Checks that only version 1 (or nothing) or version 2, which was being saved, is present.
  std::string check(bool said_done) const {
    try {
      const auto version = saved().load(path());
      if (!version && overwrite()) return "it is gone";
      if (version && *version != 2 && !(overwrite() && *version == 1)) return "it is another one";
      if (said_done && version != 2) return "the save said that it was done";
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string check_next_save() const {
    try {
      saved().save(path(), 3);
      if (saved().load(path()) != 3) return "the next save is not there";
      saved().save(path(), 4);
      if (testing::entries(path().parent_path()) != 1) return "something was left behind";
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_P(AttackCalls, Fail) {
  constexpr Fault kFaults[] = {
      {"ENOSPC", ENOSPC, 1},     {"EIO", EIO, 1},     {"EINTR", EINTR, 1},   {"short", -1, 1},
      {"ENOSPC+", ENOSPC, kAll}, {"EIO+", EIO, kAll}, {"EINTR+", EINTR, 50}, {"short+", -7, kAll}};
  AttackReport report("failing-calls");
  for (const Fault& fault : kFaults) {
    for (int at = 0, calls = at + 1; at < calls; ++at) {
      begin();
      calls = 0;
      set_fault_hook([&](const DiskCall& call) {
        const int number = calls++;
        return number >= at && number - at < fault.count ? fault.result : no_swap(call);
      });
      bool done = false;
      std::string why;
      try {
        saved().save(path(), 2);
        done = true;
      } catch (const IoError& error) {
        if (fault.result < 0 || fault.result == EINTR) why = error.what();
      } catch (const std::exception& error) {
        why = std::string("not an IoError: ") + error.what();
      }
      set_fault_hook(nullptr);
      if (why.empty()) why = check(done);
      if (why.empty()) why = check_next_save();
      report.count(why.empty(),
                   fmt::format("{} {} at call {}: {}", saved().name, fault.name, at, why));
      ASSERT_LT(at, 1000);
    }
  }
}

TEST_P(AttackCalls, AreTheLast) {
  AttackReport report("kill-at-each-call");
  for (const bool half_written : {false, true}) {
    bool died = true;
    for (int at = 0; died; ++at) {
      begin();
      const pid_t child = ::fork();
      if (child == 0) {
        int calls = 0;
        set_fault_hook([&](const DiskCall& call) {
          const int number = calls++;
          const int half = static_cast<int>(call.bytes.size() / 2);
          if (number > at || (number == at && (!half_written || half == 0))) ::_exit(42);
          if (number == at) return -half;
          return no_swap(call);
        });
        try {
          saved().save(path(), 2);
        } catch (...) {
          ::_exit(1);
        }
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 1);
      died = WEXITSTATUS(status) == 42;
      std::string why = check(!died);
      if (why.empty()) why = check_next_save();
      report.count(why.empty(), fmt::format("{} died at call {}: {}", saved().name, at, why));
      ASSERT_LT(at, 1000);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Saves, AttackCalls,
                         ::testing::Values(std::tuple(&testing::kCheckpoint, false, false),
                                           std::tuple(&testing::kCheckpoint, true, false),
                                           std::tuple(&testing::kCheckpoint, true, true),
                                           std::tuple(&testing::kSharded, true, false),
                                           std::tuple(&testing::kSharded, true, true),
                                           std::tuple(&testing::kFile, false, false),
                                           std::tuple(&testing::kFile, true, false)));

}  // namespace
}  // namespace steep

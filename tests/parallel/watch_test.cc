// Processes that end or do not answer, by the files that they lock and write to.

#include "parallel/watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>

#include "steep/error.h"
#include "train/temp_folder.h"

namespace steep {
namespace {

using std::chrono::milliseconds;

/// Processes meet in folder().
class Watched : public testing::TempFolder {};

constexpr WatchTimes kShort{.beat = milliseconds(20), .silence = milliseconds(1500)};

/// Waits until `done` or for ten seconds.
bool wait_for(const std::function<bool()>& done) {
  for (int i = 0; i < 1000 && !done(); ++i) std::this_thread::sleep_for(milliseconds(10));
  return done();
}

/// The file of another process, which never writes to it again.
class File {
 public:
  File(const std::filesystem::path& path, bool locked) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const uint64_t content[] = {1, 0};
    EXPECT_EQ(::write(file_, content, sizeof(content)), static_cast<ssize_t>(sizeof(content)));
    if (locked) {
      EXPECT_EQ(::flock(file_, LOCK_EX), 0);
    }
  }
  ~File() { ::close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

 private:
  int file_;
};

TEST_F(Watched, AProcessThatIsThereIsNotLost) {
  std::atomic<int> lost = 0;
  const auto count = [&] { ++lost; };
  Watch one(folder(), 0, 2, kShort), other(folder(), 1, 2, kShort);
  one.on_loss(count);
  other.on_loss(count);
  std::this_thread::sleep_for(2 * kShort.silence);
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(one.find().rank, -1);
}

TEST_F(Watched, OneThatLeavesHasEnded) {
  std::atomic<int> lost = 0;
  Watch one(folder(), 0, 2, kShort);
  one.on_loss([&] { ++lost; });
  {
    const Watch other(folder(), 1, 2, kShort);
    std::this_thread::sleep_for(5 * kShort.beat);
  }
  const Watch::Loss loss = one.find();
  EXPECT_EQ(loss.rank, 1);
  EXPECT_EQ(loss.how, "ended");
  std::this_thread::sleep_for(2 * kShort.silence);
  EXPECT_EQ(lost, 0);
}

TEST_F(Watched, OneWhoseLockIsFreeWasKilled) {
  const File file(folder() / "alive.1", false);
  Watch one(folder(), 0, 2, kShort);
  EXPECT_TRUE(wait_for([&] { return one.find().rank == 1; }));
  EXPECT_EQ(one.find().how, "was killed");
}

TEST_F(Watched, OneThatDoesNotWriteDoesNotAnswer) {
  const File file(folder() / "alive.1", true);
  std::atomic<int> lost = 0;
  Watch one(folder(), 0, 3, kShort);
  one.on_loss([&] { ++lost; });
  EXPECT_TRUE(wait_for([&] { return lost > 0; }));
  const Watch::Loss loss = one.find();
  EXPECT_EQ(loss.rank, 1);
  EXPECT_EQ(loss.how, "did not answer for 1.5 s");
  EXPECT_EQ(lost, 1);
}

TEST_F(Watched, ALossBeforeSomebodyAsksForItIsTold) {
  const File file(folder() / "alive.1", false);
  Watch one(folder(), 0, 2, kShort);
  EXPECT_TRUE(wait_for([&] { return one.find_now().rank == 1; }));
  std::this_thread::sleep_for(5 * kShort.beat);
  std::atomic<int> lost = 0;
  one.on_loss([&] { ++lost; });
  EXPECT_EQ(lost, 1);
}

TEST_F(Watched, OneThatStartsLateIsAbsentAndNotLost) {
  std::atomic<int> lost = 0;
  Watch one(folder(), 0, 2, kShort);
  one.on_loss([&] { ++lost; });
  std::this_thread::sleep_for(2 * kShort.silence);
  EXPECT_EQ(one.absent(), std::vector{1});
  EXPECT_EQ(one.find_now().rank, -1);
  const Watch other(folder(), 1, 2, kShort);
  EXPECT_TRUE(one.absent().empty());
  std::this_thread::sleep_for(5 * kShort.beat);
  EXPECT_EQ(lost, 0);
}

TEST_F(Watched, OneThatItsLauncherHasLostBeforeItStarts) {
  Watch one(folder(), 0, 2, kShort);
  note_loss(folder(), 1, "was killed");
  EXPECT_TRUE(wait_for([&] { return one.find_now().rank == 1; }));
  EXPECT_EQ(one.find_now().how, "was killed");
}

TEST_F(Watched, OneThatCouldNotWriteHasEnded) {
  { const std::ofstream empty(folder() / "alive.1"); }
  Watch one(folder(), 0, 2, kShort);
  EXPECT_TRUE(wait_for([&] { return one.find_now().rank == 1; }));
}

TEST_F(Watched, AFolderThatWasUsedBeforeIsRefused) {
  { const Watch before(folder(), 0, 2, kShort); }
  EXPECT_THROW(Watch(folder(), 0, 2, kShort), IoError);
}

}  // namespace
}  // namespace steep

#include "parallel/watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "steep/error.h"

namespace steep {
namespace {

using Clock = std::chrono::steady_clock;

/// The content of a file.
struct Content {
  uint64_t beat = 0;
  uint64_t leaves = 0;
};

bool read_content(int file, Content* content) {
  return ::pread(file, content, sizeof(*content), 0) == static_cast<ssize_t>(sizeof(*content));
}

/// Whether no process holds the lock of the file.
bool is_free(int file) {
  if (::flock(file, LOCK_SH | LOCK_NB) != 0) return false;
  ::flock(file, LOCK_UN);
  return true;
}

}  // namespace

Watch::Watch(std::filesystem::path folder, int rank, int size, std::function<void()> lost,
             WatchTimes times)
    : folder_(std::move(folder)),
      rank_(rank),
      times_(times),
      lost_(std::move(lost)),
      others_(static_cast<size_t>(size)) {
  // The others see the file when it is locked.
  const std::filesystem::path path = file_of(rank), early = path.string() + ".new";
  own_ = ::open(early.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (own_ < 0 || ::flock(own_, LOCK_EX | LOCK_NB) != 0) {
    throw IoError(ErrorParts{.what = "The folder in which the processes meet cannot be used.",
                             .node = early.string(),
                             .received = std::strerror(errno),
                             .remedy = "Give an empty folder that all processes may write to."});
  }
  write(false);
  std::filesystem::rename(early, path);
  // Signals are for the main thread.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  stop_.notify_all();
  thread_.join();
  write(true);
  for (const Other& other : others_) {
    if (other.file >= 0) ::close(other.file);
  }
  ::close(own_);
}

std::filesystem::path Watch::file_of(int rank) const {
  return folder_ / fmt::format("alive.{}", rank);
}

void Watch::write(bool leaves) {
  const Content content{.beat = ++beat_, .leaves = leaves ? 1u : 0u};
  [[maybe_unused]] const ssize_t written = ::pwrite(own_, &content, sizeof(content), 0);
}

void Watch::run() {
  Clock::time_point last = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stops_) {
    stop_.wait_for(lock, times_.beat, [this] { return stops_; });
    const Clock::time_point now = Clock::now();
    // This process was stopped itself, or the machine slept: the others have a new chance.
    if (now - last > times_.silence / 2) {
      for (Other& other : others_) other.seen = now;
    }
    last = now;
    write(false);
    if (found_.rank < 0 && look()) {
      lock.unlock();
      lost_();
      lock.lock();
    }
  }
}

bool Watch::look() {
  const Clock::time_point now = Clock::now();
  for (int i = 0; i < static_cast<int>(others_.size()); ++i) {
    Other& other = others_[static_cast<size_t>(i)];
    if (i == rank_) continue;
    if (other.file < 0) {
      other.file = ::open(file_of(i).c_str(), O_RDONLY | O_CLOEXEC);
      other.seen = now;
    }
    if (other.file < 0) continue;           // it still starts
    const bool free = is_free(other.file);  // before the content, which tells a process that leaves
    Content content;
    if (!read_content(other.file, &content)) continue;
    if (free && content.leaves == 0) {
      found_ = {i, "was killed"};
      return true;
    }
    if (content.beat != other.beat || content.leaves != 0) {
      other.beat = content.beat;
      other.seen = now;
    } else if (now - other.seen > times_.silence) {
      found_ = {i, fmt::format("did not answer for {} s",
                               static_cast<double>(times_.silence.count()) / 1000)};
      return true;
    }
  }
  return false;
}

Watch::Loss Watch::find_now(bool left) {
  for (int i = 0; i < static_cast<int>(others_.size()); ++i) {
    const Other& other = others_[static_cast<size_t>(i)];
    if (i == rank_ || other.file < 0 || !is_free(other.file)) continue;
    Content content;
    if (!read_content(other.file, &content)) continue;
    if (content.leaves == 0) return {i, "was killed"};
    if (left) return {i, "ended"};
  }
  return {};
}

Watch::Loss Watch::find() {
  for (int tries = 0; tries < 10; ++tries) {
    {
      const std::lock_guard lock(mutex_);
      if (found_.rank >= 0) return found_;
      if (Loss loss = find_now(false); loss.rank >= 0) return loss;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::lock_guard lock(mutex_);
  return find_now(true);
}

}  // namespace steep

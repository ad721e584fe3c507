#include "parallel/watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "runtime/threads.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;
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

fs::path file_of(const fs::path& folder, int rank) {
  return folder / fmt::format("alive.{}", rank);
}
fs::path note_of(const fs::path& folder, int rank) { return folder / fmt::format("lost.{}", rank); }

[[noreturn]] void throw_unusable(const fs::path& file, const char* received, const char* remedy) {
  throw IoError(ErrorParts{.what = "The folder in which the processes meet cannot be used.",
                           .node = file.string(),
                           .received = received,
                           .remedy = remedy});
}

}  // namespace

void note_loss(const fs::path& folder, int rank, const std::string& how) {
  const fs::path path = note_of(folder, rank), early = path.string() + ".new";
  std::ofstream(early) << how;
  std::error_code ignored;  // without the note the others wait until their time is over
  fs::rename(early, path, ignored);
}

Watch::Watch(fs::path folder, int rank, int size, WatchTimes times)
    : folder_(std::move(folder)), rank_(rank), times_(times), others_(static_cast<size_t>(size)) {
  make_file();
  try {
    thread_ = start_quiet_thread("the watch over other processes", [this] { run(); });
  } catch (...) {
    ::close(own_);  // tells the others that this one ends
    throw;
  }
}

void Watch::make_file() {
  const fs::path path = file_of(folder_, rank_), early = path.string() + ".new";
  if (std::error_code none; fs::exists(path, none)) {
    throw_unusable(path, "a file of another training",
                   "Give an empty folder to each training that is started.");
  }
  // The others see the file when it is locked and has content.
  own_ = ::open(early.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const Content content{.beat = ++beat_, .leaves = 0};
  const bool locked = own_ >= 0 && ::flock(own_, LOCK_EX | LOCK_NB) == 0;
  if (locked) errno = ENOSPC;  // stays, if a part is written
  if (locked && ::write(own_, &content, sizeof(content)) == sizeof(content) &&
      ::rename(early.c_str(), path.c_str()) == 0) {
    return;
  }
  const int error = errno;
  ::rename(early.c_str(), path.c_str());  // without a lock: tells the others that this one ends
  if (own_ >= 0) ::close(own_);
  throw_unusable(early, std::strerror(error),
                 error == ENOSPC || error == EDQUOT
                     ? "Make room on the disk of that folder, or choose another disk: TMPDIR for "
                       "`steep launch`, else STEEP_RENDEZVOUS."
                     : "Give an empty folder that all processes may write to.");
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
    if (found_.rank < 0 && look() && lost_) {
      const std::function<void()> lost = lost_;
      lock.unlock();
      lost();
      lock.lock();
    }
  }
}

void Watch::on_loss(const std::function<void()>& lost) {
  std::unique_lock lock(mutex_);
  lost_ = lost;
  if (found_.rank < 0) return;
  lock.unlock();
  lost();
}

bool Watch::has_file(int rank) {
  Other& other = others_[static_cast<size_t>(rank)];
  if (rank == rank_ || other.file >= 0) return true;
  other.file = ::open(file_of(folder_, rank).c_str(), O_RDONLY | O_CLOEXEC);
  other.seen = Clock::now();
  return other.file >= 0;
}

std::vector<int> Watch::absent() {
  const std::lock_guard lock(mutex_);
  std::vector<int> result;
  for (int i = 0; i < static_cast<int>(others_.size()); ++i) {
    if (!has_file(i)) result.push_back(i);
  }
  return result;
}

bool Watch::look() {
  const Clock::time_point now = Clock::now();
  for (int i = 0; i < static_cast<int>(others_.size()); ++i) {
    if (i == rank_) continue;
    if (!has_file(i)) {
      std::ifstream note(note_of(folder_, i));
      if (!note) continue;  // it still starts
      found_ = {i, {std::istreambuf_iterator<char>(note), {}}};
      return true;
    }
    Other& other = others_[static_cast<size_t>(i)];
    const bool free = is_free(other.file);  // before the content, which tells a process that leaves
    Content content;
    if (!read_content(other.file, &content)) {
      if (!free) continue;
      found_ = {i, "ended"};  // it could not write to its file
      return true;
    }
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

Watch::Loss Watch::find_free(bool left) {
  if (found_.rank >= 0) return found_;
  Loss leaver;
  for (int i = 0; i < static_cast<int>(others_.size()); ++i) {
    const Other& other = others_[static_cast<size_t>(i)];
    if (i == rank_ || other.file < 0 || !is_free(other.file)) continue;
    Content content;
    if (!read_content(other.file, &content)) continue;
    if (content.leaves == 0) return {i, "was killed"};
    if (left && leaver.rank < 0) leaver = {i, "ended"};
  }
  return leaver;
}

Watch::Loss Watch::find_now() {
  const std::lock_guard lock(mutex_);
  return find_free(true);
}

Watch::Loss Watch::find(std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  while (Clock::now() < end) {
    {
      const std::lock_guard lock(mutex_);
      if (Loss loss = find_free(false); loss.rank >= 0) return loss;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return find_now();
}

}  // namespace steep

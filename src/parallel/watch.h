// Notices processes that have ended or do not answer, by files in a folder that all of them see.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace steep {

struct WatchTimes {
  std::chrono::milliseconds beat{500};      ///< between two beats of a process
  std::chrono::milliseconds silence{7000};  ///< after which it does not answer
};

/// Each process locks a file of its own (flock) and writes to it twice a second, in a thread, which
/// a slow step does not stop. A file whose lock is free is that of a process that has ended; one
/// that nobody writes to, that of a process that is stopped, or of a machine that is cut off. A
/// process that has no file yet may start as late as it likes, unless its launcher has written how
/// it was lost (note_loss).
class Watch {
 public:
  /// Throws IoError: the folder cannot be written to, or was used before.
  Watch(std::filesystem::path folder, int rank, int size, WatchTimes times = {});
  /// Tells the others that this process leaves, so that they do not take it for one that was
  /// killed.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// `lost` is called once, for the first process that was killed or does not answer.
  void on_loss(const std::function<void()>& lost);
  /// The processes that have no file yet.
  std::vector<int> absent();

  struct Loss {
    int rank = -1;  ///< -1: none
    std::string how{};
  };
  /// The process that was lost, or has left. Waits for `patience` before it names one that has
  /// left: a connection may close before the lock does, and one leaves that has found a loss.
  Loss find(std::chrono::milliseconds patience = std::chrono::milliseconds(500));
  /// The same without waiting.
  Loss find_now();

 private:
  struct Other {
    int file = -1;
    uint64_t beat = 0;
    std::chrono::steady_clock::time_point seen{};
  };
  void make_file();
  void write(bool leaves);
  void run();
  bool look();  ///< whether a process was killed or does not answer
  bool has_file(int rank);
  Loss find_free(bool left);

  std::filesystem::path folder_;
  int rank_;
  WatchTimes times_;
  std::function<void()> lost_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stops_ = false;
  uint64_t beat_ = 0;
  int own_ = -1;
  Loss found_;  ///< by look()
  std::vector<Other> others_;
  std::thread thread_;
};

/// For a launcher: how one of its processes was lost, for those that wait for it to start.
void note_loss(const std::filesystem::path& folder, int rank, const std::string& how);

}  // namespace steep

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
/// that nobody writes to, that of a process that is stopped, or of a machine that is cut off.
class Watch {
 public:
  /// `lost` is called once, in the thread, for the first process that was killed or does not
  /// answer. Throws IoError.
  Watch(std::filesystem::path folder, int rank, int size, std::function<void()> lost,
        WatchTimes times = {});
  /// Tells the others that this process leaves, so that they do not take it for one that was
  /// killed.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  struct Loss {
    int rank = -1;  ///< -1: none
    std::string how{};
  };
  /// The process that was lost. Waits up to half a second, as a connection may close before the
  /// lock does.
  Loss find();

 private:
  struct Other {
    int file = -1;
    uint64_t beat = 0;
    std::chrono::steady_clock::time_point seen{};
  };
  std::filesystem::path file_of(int rank) const;
  void write(bool leaves);
  void run();
  bool look();  ///< whether a process was killed or does not answer
  Loss find_now(bool left);

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

}  // namespace steep

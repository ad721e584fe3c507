// Threads that compute (OpenMP's) and threads that call the engine.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace steep {

/// Returns the number of threads that may compute for the calling thread, and lowers OpenMP's
/// setting for this thread to it. Call it before planning or running. The number is smaller than
/// requested if the system cannot start more threads (OpenMP would end the process); stderr reports
/// this once per process. After a fork it is one, because the child does not have OpenMP's threads
/// and would wait for them forever. Other threads that the child starts are not limited. `count`:
/// the number of threads that the plan to be run assumes.
int settle_threads(int count);

/// The most threads that options and the program accept.
constexpr int64_t kMostThreads = 1024;

/// Starts a thread that gets no signals, which are for the main thread. `work`: what it does, for
/// the error. `run` throws nothing. Throws ProviderError if the system cannot start a thread.
std::thread start_quiet_thread(const char* work, std::function<void()> run);

/// Limits the number of OpenMP's threads, a setting of the calling thread, during its lifetime.
class ThreadBound {
 public:
  /// 0: no change. Throws ModelError for a number below 0 or above kMostThreads.
  explicit ThreadBound(int64_t most);
  ~ThreadBound();
  ThreadBound(const ThreadBound&) = delete;
  ThreadBound& operator=(const ThreadBound&) = delete;

 private:
  int before_;
};

/// Marks the calling thread as being in a call of the engine, during its lifetime. The constructor
/// throws ProviderError in a process that was forked while another thread was in a call: the locks
/// of that thread are never released, and its work is never finished.
class EngineCall {
 public:
  EngineCall();
  ~EngineCall();
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;
};

/// A mutex for the calls on one object, for std::lock_guard. A thread that waits for it must not
/// hold Python's interpreter lock, which the holder may need. lock() throws ProviderError instead
/// of waiting forever: within a call on the same object (in a signal handler, in a destructor of an
/// input); and as EngineCall does.
class CallLock {
 public:
  void lock();
  void unlock();
  /// From now on lock() throws ProviderError in a process that is forked from this one, which
  /// shares memory that calls write.
  void hold_process();
  /// From now on each holder of the lock has this ThreadBound. Throws as its constructor does.
  void bound_threads(int64_t most);

 private:
  std::mutex mutex_;
  int64_t threads_ = 0;
  std::optional<ThreadBound> bound_{};  // of the holder
  pid_t process_ = 0;                   // 0: any
  std::atomic<std::thread::id> holder_{};
};

}  // namespace steep

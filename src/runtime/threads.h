// Threads: those that compute, which are OpenMP's, and those that call.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace steep {

/// How many threads may compute for the calling thread; before anything is planned or run.
/// OpenMP's setting for this thread is lowered to that. Fewer than were asked for, which stderr is
/// told once a process, where the system starts no more (OpenMP would end the process), and one
/// after a fork: OpenMP's threads did not come along, and it would wait for them for ever. Other
/// threads that the child starts have all. `planned`: a plan to be run was made for so many.
int settle_threads(int planned);

/// Bounds OpenMP's threads, which are the calling thread's setting, for as long as it lives.
class ThreadBound {
 public:
  explicit ThreadBound(int most);  ///< 0: as they are
  ~ThreadBound();
  ThreadBound(const ThreadBound&) = delete;
  ThreadBound& operator=(const ThreadBound&) = delete;

 private:
  int before_;
};

/// While one lives, the calling thread is in a call of the engine. The constructor throws
/// ProviderError in a process that was forked while another thread was in one: what that thread had
/// locked or left half done stays so.
class EngineCall {
 public:
  EngineCall();
  ~EngineCall();
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;
};

/// Calls of one object take turns: a mutex, for std::lock_guard. Whoever waits for it must not hold
/// Python's interpreter lock, which the holder may need. lock() throws ProviderError where it would
/// wait for ever: within a call of the same object (in a signal's handler, in a destructor of what
/// was fed), and as EngineCall does.
class Turn {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> holder_{};
};

}  // namespace steep

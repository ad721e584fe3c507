// Threads: those that compute, which are OpenMP's, and those that call.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace steep {

/// The number of threads that may compute for the calling thread. Call it before planning or
/// running. OpenMP's setting for this thread is lowered to that. It is smaller than requested if
/// the system starts no more threads (OpenMP would end the process); stderr reports this once per
/// process. It is one after a fork: the child does not have OpenMP's threads and would wait for
/// them forever. Other threads that the child starts have all. `planned`: a plan to be run was made
/// for so many.
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
/// ProviderError in a process that was forked while another thread was in one: that thread's locks
/// are never released, and its work stays unfinished.
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

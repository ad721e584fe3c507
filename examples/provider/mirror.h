// Mirror: a device that is a thread of this process with its own memory. It computes what a CPU
// could compute, but it behaves like a GPU towards the engine: the host cannot access its memory,
// and its work is asynchronous.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "steep/provider.h"

namespace mirror {

/// The functions of the engine, set when the engine loads the plug-in.
extern const SteepHost* host;

/// Memory that is mapped twice. The host's addresses cannot be read or written: a stray access
/// faults. The device's thread has other addresses for the same bytes. Thread-safe.
class Memory {
 public:
  /// Throws std::runtime_error when the system cannot reserve the addresses.
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Returns an address of the host; null when there is not enough memory left.
  void* allocate(size_t bytes);
  void release(void* data);

  /// The device's address for the host's address `data`; null stays null.
  void* seen_by_device(const void* data) const {
    if (data == nullptr) return nullptr;
    return inside_ + (static_cast<const std::byte*>(data) - outside_);
  }

 private:
  size_t bytes_;
  int file_;
  std::byte* outside_;  // of the host
  std::byte* inside_;   // of the device
  std::mutex mutex_;
  std::map<size_t, size_t> used_;  // offset → end
};

/// Wrong values in the caller's data, found while work runs.
struct DataFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Work for the device's thread. It may throw DataFailure or any exception, which sync() then
/// reports.
using Task = std::function<void()>;

/// A point in the work of a stream, for which other streams can wait.
class Event {
 public:
  void happen();
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
};

/// A queue of tasks that run in order, on its own thread.
class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(Task task);
  /// Tasks that are enqueued from now on start after all present tasks of `other`, even if these
  /// fail.
  void wait(Stream& other);
  /// Waits for all tasks and returns the first error among them, or null. Tasks after a failed one
  /// did not run.
  SteepError* sync();

 private:
  struct Entry {
    Task task;
    bool always;  // runs even after a failure
  };
  void enqueue(Entry entry);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> tasks_;
  bool busy_ = false, ends_ = false;
  SteepErrorKind failed_ = static_cast<SteepErrorKind>(0);
  std::string failure_;
  std::thread thread_;  // last: it uses the other members
};

struct Device {
  explicit Device(size_t bytes) : memory(bytes) {}
  Memory memory;
};

SteepError* error(SteepErrorKind kind, const std::string& what, const std::string& received = "",
                  const std::string& remedy = "");

}  // namespace mirror

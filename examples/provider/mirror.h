// Mirror: a device that is a thread of this process with memory of its own. It computes nothing
// that a CPU would not, but it holds the engine to what a GPU would: memory that the host cannot
// touch, and work that runs later.
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

/// What the engine offers, from the moment that it loads the plug-in.
extern const SteepHost* host;

/// Memory that is there twice. The host has addresses that it cannot read or write: a stray access
/// faults. The device's thread has others for the same bytes. Thread-safe.
class Memory {
 public:
  /// Throws std::runtime_error where the system has no room for so many bytes of addresses.
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// As the host knows it; null when there is not enough left.
  void* allocate(size_t bytes);
  void release(void* data);

  /// The device's address of what the host knows as `data`; null stays null.
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
  std::map<size_t, size_t> used_;  // by offset: the end
};

/// Values that the data's owner got wrong, found as work runs.
struct DataFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Work for the device's thread. Throws DataFailure, or anything, which sync() then reports.
using Task = std::function<void()>;

/// A point in the work of a stream, for others to wait for.
class Event {
 public:
  void happen();
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
};

/// Tasks in order, on a thread of its own.
class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(Task task);
  /// What is enqueued from now on begins after all that `other` has to do by now, be it in vain.
  void wait(Stream& other);
  /// Waits for all of them, and returns the first error among them; null is none. Tasks behind the
  /// one that failed did not run.
  SteepError* sync();

 private:
  struct Entry {
    Task task;
    bool always;  // even if one before it failed
  };
  void enqueue(Entry entry);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> tasks_;
  bool busy_ = false, ends_ = false;
  SteepErrorKind failed_ = static_cast<SteepErrorKind>(0);
  std::string failure_;
  std::thread thread_;  // last: it uses the others
};

struct Device {
  explicit Device(size_t bytes) : memory(bytes) {}
  Memory memory;
};

SteepError* error(SteepErrorKind kind, const std::string& what, const std::string& received = "",
                  const std::string& remedy = "");

}  // namespace mirror

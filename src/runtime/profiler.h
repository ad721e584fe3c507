// Where the time of a run goes: one event per kernel, written as a Chrome/Perfetto trace.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace steep {

/// Not thread-safe; belongs to the thread that runs the program.
class Profiler {
 public:
  using Clock = std::chrono::steady_clock;

  /// One kernel execution. The views must outlive the profiler's use of them (they belong to the
  /// plan).
  struct Event {
    std::string node;  ///< name of the node
    std::string op;
    std::string kernel;  ///< candidate that ran: "onednn", "simd", …
    std::string shapes;  ///< "float32[8, 4] ← float32[8, 3], float32[3, 4]"
    double start_us = 0;
    double duration_us = 0;
    double flops = 0;  ///< of this execution; 0: not counted
  };

  Profiler() : origin_(Clock::now()) {}
  double now_us() const {
    return std::chrono::duration<double, std::micro>(Clock::now() - origin_).count();
  }
  void add(Event event) { events_.push_back(std::move(event)); }
  const std::vector<Event>& events() const { return events_; }
  void clear() { events_.clear(); }

  /// JSON in the Trace Event Format, one row (tid) per operator, times in microseconds, GFLOP/s
  /// where operations are counted. Opens in ui.perfetto.dev.
  std::string to_json() const;
  /// Throws IoError.
  void write(const std::string& path) const;

 private:
  Clock::time_point origin_;
  std::vector<Event> events_;
};

}  // namespace steep

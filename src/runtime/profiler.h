// Where the time goes: one event per kernel of a run and per stage of the compiler, written as a
// Chrome/Perfetto trace.
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

  /// One kernel execution, or one stage of the compiler.
  struct Event {
    std::string node;      ///< name of the node; "fuse_matmul" of a stage
    std::string op;        ///< "compile" of a stage
    std::string kernel{};  ///< candidate that ran: "onednn", "simd", …
    std::string shapes{};  ///< "float32[8, 4] ← float32[8, 3], float32[3, 4]"
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

/// Adds the event of a stage that lasts as long as this lives; nothing for a null profiler.
class TimedStage {
 public:
  TimedStage(Profiler* profiler, std::string_view name)
      : profiler_(profiler), name_(name), start_us_(profiler != nullptr ? profiler->now_us() : 0) {}
  ~TimedStage();
  TimedStage(const TimedStage&) = delete;
  TimedStage& operator=(const TimedStage&) = delete;

 private:
  Profiler* profiler_;
  std::string name_;
  double start_us_;
};

}  // namespace steep

// Where the time goes: one event per kernel of a run and per stage of the compiler, written as a
// Chrome/Perfetto trace.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "steep/compile_stage.h"

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

/// Times a stage of the compiler from here to done(). Either pointer may be null.
class TimedStage {
 public:
  TimedStage(Profiler* profiler, std::vector<CompileStage>* stages, std::string_view name)
      : profiler_(profiler), stages_(stages), name_(name) {}

  /// The stage left a graph of so many nodes: the profiler gets its event, `stages` its row.
  void done(size_t nodes);

 private:
  Profiler* profiler_;
  std::vector<CompileStage>* stages_;
  std::string name_;
  Profiler::Clock::time_point start_ = Profiler::Clock::now();
};

}  // namespace steep

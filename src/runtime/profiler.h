// Records one event per kernel of a run and per stage of the compiler, and writes them as a
// Chrome/Perfetto trace.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "steep/compile_stage.h"
#include "steep/exchange.h"

namespace steep {

/// Not thread-safe; belongs to the thread that runs the program.
class Profiler {
 public:
  using Clock = std::chrono::steady_clock;

  /// One kernel execution, one stage of the compiler, or one exchange with other processes.
  struct Event {
    std::string node;      ///< name of the node, or of the stage ("fuse_matmul")
    std::string op;        ///< "compile" for a stage, "communication" for an exchange
    std::string kernel{};  ///< the candidate that ran: "onednn", "simd", …
    std::string shapes{};  ///< "float32[8, 4] ← float32[8, 3], float32[3, 4]"
    double start_us = 0;
    double duration_us = 0;
    double flops = 0;     ///< of this execution; 0: unknown
    size_t bytes = 0;     ///< of the tensors of an exchange
    int64_t bucket = -1;  ///< of gradients in it; -1: none
  };

  Profiler() : origin_(Clock::now()) {}
  double now_us() const { return us_of(Clock::now()); }
  double us_of(Clock::time_point time) const {
    return std::chrono::duration<double, std::micro>(time - origin_).count();
  }
  void add(Event event) { events_.push_back(std::move(event)); }
  /// All exchanges are one row.
  void add(const Exchange& exchange);
  const std::vector<Event>& events() const { return events_; }
  void clear() { events_.clear(); }

  /// JSON in the Trace Event Format: one row (tid) per operator, and one for all exchanges; times
  /// in microseconds, and GFLOP/s if flops is known. ui.perfetto.dev opens it.
  std::string to_json() const;
  /// Throws IoError.
  void write(const std::string& path) const;

 private:
  Clock::time_point origin_;
  std::vector<Event> events_;
};

/// Measures the time of a compiler stage, from construction to done(). Either pointer may be null.
class TimedStage {
 public:
  TimedStage(Profiler* profiler, std::vector<CompileStage>* stages, std::string_view name)
      : profiler_(profiler), stages_(stages), name_(name) {}

  /// Ends the stage, after which the graph has `nodes` nodes. Adds the profiler's event and the row
  /// of `stages`.
  void done(size_t nodes);

 private:
  Profiler* profiler_;
  std::vector<CompileStage>* stages_;
  std::string name_;
  Profiler::Clock::time_point start_ = Profiler::Clock::now();
};

}  // namespace steep

// Reports of progress: one live line on a terminal, plain lines elsewhere, or one line of JSON per
// report.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace steep::cli {

/// The fields of a report, in the order in which they are written. Numbers that are not finite are
/// null.
using Fields = nlohmann::ordered_json;
/// One line of JSON, also if texts are not valid UTF-8.
std::string to_line(const Fields& fields);

class Progress {
 public:
  /// `total`: number of samples of the whole run; `start`: those before this process. `json`:
  /// reports are lines of JSON, each an object whose "report" is "note", "step" or "epoch".
  /// `quiet`: nothing is printed.
  Progress(double total, double start, bool json = false, bool quiet = false);
  /// Called after each step. On a terminal redraws at most ten times a second; in a file prints
  /// every ten seconds.
  void step(int64_t samples, const std::string& text, const Fields& fields = {});
  /// A line that is not overwritten.
  void line(const std::string& text);
  /// The same with "warning: " in front; nothing for "".
  void warning(const std::string& text);
  /// The rate of epoch() is that between these two calls.
  void begin_epoch();
  void end_steps();
  void epoch(const std::string& text, Fields fields);
  /// Whether standard output accepts no more lines, because its reader has gone or the disk is
  /// full. Later lines go to standard error; progress is not shown any more.
  bool lost() const;

 private:
  using Clock = std::chrono::steady_clock;
  double samples_per_second() const;
  std::string rate_and_time_left() const;
  void put_report(const char* kind, const Fields& fields);

  double total_;
  double before_;
  int64_t samples_ = 0;
  bool json_;
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_print_;
  Clock::time_point epoch_start_ = start_;
  int64_t epoch_samples_ = 0;  ///< samples_ when the epoch began
  double epoch_rate_ = 0;
};

}  // namespace steep::cli

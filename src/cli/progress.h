// One live line on a terminal, plain lines elsewhere; or one line of JSON for each report.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace steep::cli {

/// What a report says, in the order in which it is written. Numbers that are not finite are null.
using Fields = nlohmann::ordered_json;
/// On one line, whatever the bytes of its texts.
std::string to_line(const Fields& fields);

class Progress {
 public:
  /// `total` samples in all; `done` of them before this run. `json`: reports are lines of JSON,
  /// each an object: "report" is "note", "step" or "epoch".
  Progress(double total, double done, bool json = false);
  /// After each step. Redraws at most ten times a second (terminal), or prints every ten seconds
  /// (file).
  void step(int64_t samples, const std::string& text, const Fields& fields = {});
  /// A line that stays.
  void line(const std::string& text);
  void epoch(const std::string& text, Fields fields);
  double samples_per_second() const;
  /// Standard output takes no more lines: its reader has gone, or the disk is full. Later lines go
  /// to standard error, progress nowhere.
  bool lost() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::string rate_and_time_left() const;
  void put_report(const char* kind, const Fields& fields);

  double total_;
  double before_;
  int64_t done_ = 0;
  bool json_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_;
};

}  // namespace steep::cli

// One live line on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace steep::cli {

class Progress {
 public:
  /// `total` samples in all; `done` of them before this run.
  Progress(double total, double done);
  /// After each step. Redraws at most ten times a second (terminal), or prints every ten seconds
  /// (file).
  void step(int64_t samples, const std::string& text);
  /// A line that stays.
  void line(const std::string& text);
  double samples_per_second() const;
  /// Standard output takes no more lines: its reader has gone, or the disk is full. Later lines go
  /// to standard error, progress nowhere.
  bool lost() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::string rate_and_time_left() const;

  double total_;
  double before_;
  int64_t done_ = 0;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_;
};

}  // namespace steep::cli

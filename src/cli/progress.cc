#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace steep::cli {

Progress::Progress(int64_t total, int64_t done)
    : total_(total), before_(done), terminal_(::isatty(STDOUT_FILENO) != 0), shown_(start_) {}

double Progress::samples_per_second() const {
  const std::chrono::duration<double> took = Clock::now() - start_;
  return took.count() > 0 ? static_cast<double>(done_) / took.count() : 0;
}

std::string Progress::rate_and_time_left() const {
  const double rate = samples_per_second();
  const double seconds = rate > 0 ? static_cast<double>(total_ - before_ - done_) / rate : 0;
  const auto left = static_cast<int64_t>(seconds);
  return fmt::format("{:.0f} samples/s  {}:{:02}:{:02} left", rate, left / 3600, left / 60 % 60,
                     left % 60);
}

void Progress::step(int64_t samples, const std::string& text) {
  done_ += samples;
  const auto now = Clock::now();
  if (now - shown_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10)))
    return;
  shown_ = now;
  if (terminal_) {
    fmt::print("\r\x1b[K{}  {}", text, rate_and_time_left());
    drawn_ = true;
  } else {
    fmt::print("{}  {}\n", text, rate_and_time_left());
  }
  std::fflush(stdout);
}

void Progress::line(const std::string& text) {
  if (drawn_) fmt::print("\r\x1b[K");
  drawn_ = false;
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

}  // namespace steep::cli
